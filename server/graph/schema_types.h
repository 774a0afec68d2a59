// Type numbers of torch.export's schema, which differ from LibTorch's.
#pragma once

#include <cstdint>
#include <optional>

#include "c10/core/Layout.h"
#include "c10/core/MemoryFormat.h"
#include "c10/core/ScalarType.h"

namespace braid {

// All return nullopt for a number that the schema does not have.
std::optional<c10::ScalarType> SchemaScalarType(int64_t number);
std::optional<c10::Layout> SchemaLayout(int64_t number);
std::optional<c10::MemoryFormat> SchemaMemoryFormat(int64_t number);

}  // namespace braid

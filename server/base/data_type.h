// Element types, by the names that the Open Inference Protocol gives them.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"

namespace braid {

enum class DataType {
  kBool,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFp16,
  kBf16,
  kFp32,
  kFp64,
};

// "FP32".
absl::string_view DataTypeName(DataType type);
// nullopt for what is not one of the names above; BYTES among them.
std::optional<DataType> DataTypeFromName(absl::string_view name);
// Bytes of one element.
size_t DataTypeSize(DataType type);
// FP16, BF16, FP32, FP64.
bool IsFloatingPoint(DataType type);

// All names, for messages: "BOOL, UINT8, …".
absl::string_view AllDataTypeNames();

}  // namespace braid

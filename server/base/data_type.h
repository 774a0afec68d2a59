// Element types of the Open Inference Protocol.
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

// Returns the protocol's name, for example "FP32".
absl::string_view DataTypeName(DataType type);
// Returns nullopt for other names, including BYTES, which is not supported.
std::optional<DataType> DataTypeFromName(absl::string_view name);
// Returns the bytes of one element.
size_t DataTypeSize(DataType type);
// Returns true for FP16, BF16, FP32 and FP64.
bool IsFloatingPoint(DataType type);

// Returns all names for messages: "BOOL, UINT8, …".
absl::string_view AllDataTypeNames();

}  // namespace braid

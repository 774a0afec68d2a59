#include "server/base/data_type.h"

#include <array>

namespace braid {
namespace {

struct Row {
  DataType type;
  absl::string_view name;
  size_t size;
};

constexpr std::array<Row, 13> kRows = {{
    {DataType::kBool, "BOOL", 1},
    {DataType::kUint8, "UINT8", 1},
    {DataType::kUint16, "UINT16", 2},
    {DataType::kUint32, "UINT32", 4},
    {DataType::kUint64, "UINT64", 8},
    {DataType::kInt8, "INT8", 1},
    {DataType::kInt16, "INT16", 2},
    {DataType::kInt32, "INT32", 4},
    {DataType::kInt64, "INT64", 8},
    {DataType::kFp16, "FP16", 2},
    {DataType::kBf16, "BF16", 2},
    {DataType::kFp32, "FP32", 4},
    {DataType::kFp64, "FP64", 8},
}};

const Row& RowOf(DataType type) { return kRows[static_cast<size_t>(type)]; }

}  // namespace

absl::string_view DataTypeName(DataType type) { return RowOf(type).name; }

std::optional<DataType> DataTypeFromName(absl::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return row.type;
    }
  }
  return std::nullopt;
}

size_t DataTypeSize(DataType type) { return RowOf(type).size; }

bool IsFloatingPoint(DataType type) { return type >= DataType::kFp16; }

absl::string_view AllDataTypeNames() {
  return "BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64";
}

}  // namespace braid

#include "server/graph/schema_types.h"

namespace braid {

std::optional<c10::ScalarType> SchemaScalarType(int64_t number) {
  switch (number) {
    case 1:
      return c10::kByte;
    case 2:
      return c10::kChar;
    case 3:
      return c10::kShort;
    case 4:
      return c10::kInt;
    case 5:
      return c10::kLong;
    case 6:
      return c10::kHalf;
    case 7:
      return c10::kFloat;
    case 8:
      return c10::kDouble;
    case 9:
      return c10::kComplexHalf;
    case 10:
      return c10::kComplexFloat;
    case 11:
      return c10::kComplexDouble;
    case 12:
      return c10::kBool;
    case 13:
      return c10::kBFloat16;
    case 28:
      return c10::kUInt16;
    case 29:
      return c10::kFloat8_e4m3fn;
    case 30:
      return c10::kFloat8_e5m2;
    case 31:
      return c10::kFloat8_e4m3fnuz;
    case 32:
      return c10::kFloat8_e5m2fnuz;
    case 33:
      return c10::kFloat8_e8m0fnu;
    case 34:
      return c10::kUInt32;
    case 35:
      return c10::kUInt64;
    default:
      return std::nullopt;
  }
}

std::optional<c10::Layout> SchemaLayout(int64_t number) {
  switch (number) {
    case 1:
      return c10::kSparse;
    case 2:
      return c10::kSparseCsr;
    case 3:
      return c10::kSparseCsc;
    case 4:
      return c10::kSparseBsr;
    case 5:
      return c10::kSparseBsc;
    case 6:
      return c10::kMkldnn;
    case 7:
      return c10::kStrided;
    default:
      return std::nullopt;
  }
}

std::optional<c10::MemoryFormat> SchemaMemoryFormat(int64_t number) {
  switch (number) {
    case 1:
      return c10::MemoryFormat::Contiguous;
    case 2:
      return c10::MemoryFormat::ChannelsLast;
    case 3:
      return c10::MemoryFormat::ChannelsLast3d;
    case 4:
      return c10::MemoryFormat::Preserve;
    default:
      return std::nullopt;
  }
}

}  // namespace braid

#include "client/cli/elements.h"

#include <bit>
#include <cmath>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace braid::cli {
namespace {

// Appends the sub-array that begins at dimension `dim`, taking its elements from `next` on.
void AppendNested(absl::Span<const int64_t> shape, size_t dim,
                  const std::vector<std::string>& cells, size_t* next, std::string* out) {
  if (dim == shape.size()) {
    *out += cells[(*next)++];
    return;
  }
  *out += '[';
  for (int64_t i = 0; i < shape[dim]; ++i) {
    if (i > 0 && dim + 1 == shape.size()) *out += ", ";
    if (i > 0 && dim + 1 < shape.size()) *out += ",\n" + std::string(dim + 1, ' ');
    AppendNested(shape, dim + 1, cells, next, out);
  }
  *out += ']';
}

}  // namespace

float FromFp16(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const auto fraction = static_cast<float>(bits & 0x3ff);
  float magnitude = 0;
  if (exponent == 31) {
    magnitude = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(fraction + 1024, exponent - 25);
  }
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0F : 1.0F);
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

std::string FormatShape(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string FormatValues(const client::Tensor& tensor) {
  std::vector<std::string> cells;
  ForEachElement(tensor, [&](auto value) {
    if constexpr (std::is_same_v<decltype(value), bool>) {
      cells.emplace_back(value ? "true" : "false");
    } else {
      cells.push_back(absl::StrCat(value));
    }
  });
  absl::StatusOr<int64_t> count = client::ElementCount(tensor.shape);
  if (!count.ok() || static_cast<size_t>(*count) != cells.size()) return "";
  // No nesting to show, and a dimension beside the 0 may be astronomic.
  if (*count == 0) return "[]";
  std::string text;
  size_t next = 0;
  AppendNested(tensor.shape, 0, cells, &next, &text);
  return text;
}

nlohmann::ordered_json JsonValues(const client::Tensor& tensor) {
  auto values = nlohmann::ordered_json::array();
  ForEachElement(tensor, [&](auto value) { values.push_back(value); });
  return values;
}

}  // namespace braid::cli

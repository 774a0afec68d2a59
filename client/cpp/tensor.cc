#include "client/cpp/tensor.h"

#include "absl/strings/str_join.h"

namespace braid::client {
namespace {

struct Datatype {
  absl::string_view name;
  size_t size;
};

constexpr Datatype kDatatypes[] = {
    {"BOOL", 1}, {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8},
    {"INT8", 1}, {"INT16", 2}, {"INT32", 4},  {"INT64", 8},  {"FP16", 2},
    {"BF16", 2}, {"FP32", 4},  {"FP64", 8},
};

// The product with an element's size still fits in int64.
constexpr int64_t kMaxElements = int64_t{1} << 59;

}  // namespace

size_t ElementSize(absl::string_view datatype) {
  for (const Datatype& known : kDatatypes) {
    if (known.name == datatype) return known.size;
  }
  return 0;
}

absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: [", absl::StrJoin(shape, ", "), "] has a negative dimension"));
    }
    if (dim > 0 && count > kMaxElements / dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: [", absl::StrJoin(shape, ", "),
                       "] has too many elements (expected at most 2^59)"));
    }
    count *= dim;
  }
  return count;
}

absl::StatusOr<int64_t> ByteCount(absl::string_view datatype, absl::Span<const int64_t> shape) {
  const size_t size = ElementSize(datatype);
  if (size == 0) {
    return absl::InvalidArgumentError(absl::StrCat("datatype: unknown value '", datatype, "'"));
  }
  absl::StatusOr<int64_t> count = ElementCount(shape);
  if (!count.ok()) return count.status();
  return *count * static_cast<int64_t>(size);
}

Tensor MakeEncoded(std::string name, absl::Span<const absl::string_view> rows) {
  Tensor tensor{std::move(name), "BYTES", {static_cast<int64_t>(rows.size())}, {}};
  for (const absl::string_view row : rows) {
    // The length in 4 bytes, little-endian, then the bytes.
    for (int shift = 0; shift < 32; shift += 8) {
      tensor.data.push_back(static_cast<char>(row.size() >> shift & 0xFF));
    }
    tensor.data.append(row.data(), row.size());
  }
  return tensor;
}

}  // namespace braid::client

#include "server/base/host_tensor.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace braid {

std::optional<size_t> BytesOf(DataType type, const std::vector<int64_t>& shape) {
  constexpr size_t kLimit = std::numeric_limits<int64_t>::max();
  size_t bytes = DataTypeSize(type);
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) {
      return std::nullopt;
    }
    if (dim == 0) {
      empty = true;
      continue;
    }
    if (bytes > kLimit / static_cast<size_t>(dim)) {
      return std::nullopt;
    }
    bytes *= static_cast<size_t>(dim);
  }
  return empty ? 0 : bytes;
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace braid

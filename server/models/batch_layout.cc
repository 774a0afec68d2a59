#include "server/models/batch_layout.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/data_type.h"
#include "server/base/status.h"

namespace braid {
namespace {

// Blocks of equal size at [i][j], `stride[0]` and `stride[1]` blocks apart.
struct Blocks {
  char* data = nullptr;
  size_t stride[2] = {};
};
struct ConstBlocks {
  const char* data = nullptr;
  size_t stride[2] = {};
};

// Copies counts[0] x counts[1] blocks. kBytes: size of a block; 0: `bytes`.
template <size_t kBytes>
void CopyBlocks(const ConstBlocks& from, const Blocks& to, const size_t (&counts)[2],
                size_t bytes = kBytes) {
  const size_t block = kBytes == 0 ? bytes : kBytes;
  for (size_t i = 0; i < counts[0]; ++i) {
    const char* source = from.data + i * from.stride[0] * block;
    char* target = to.data + i * to.stride[0] * block;
    for (size_t j = 0; j < counts[1]; ++j) {
      std::memcpy(target, source, block);
      source += from.stride[1] * block;
      target += to.stride[1] * block;
    }
  }
}

// Blocks of one element are common, such as token IDs [time, batch], and slow with a memcpy of a
// size that the compiler does not know.
void CopyBlocks(const ConstBlocks& from, const Blocks& to, const size_t (&counts)[2],
                size_t bytes) {
  switch (bytes) {
    case 1:
      return CopyBlocks<1>(from, to, counts);
    case 2:
      return CopyBlocks<2>(from, to, counts);
    case 4:
      return CopyBlocks<4>(from, to, counts);
    case 8:
      return CopyBlocks<8>(from, to, counts);
    default:
      return CopyBlocks<0>(from, to, counts, bytes);
  }
}

absl::StatusOr<std::shared_ptr<char[]>> Allocate(size_t bytes) {
  std::shared_ptr<char[]> room(new (std::nothrow) char[bytes]);
  if (room == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: cannot copy a tensor of ", bytes, " bytes"));
  }
  return room;
}

// Returns the product of dims [first, last).
size_t Product(const std::vector<int64_t>& shape, size_t first, size_t last) {
  size_t product = 1;
  for (size_t d = first; d < last; ++d) {
    product *= static_cast<size_t>(shape[d]);
  }
  return product;
}

bool Moves(const std::vector<int64_t>& shape, size_t batch_dim) {
  return batch_dim > 0 && batch_dim < shape.size();
}

// Copies `piece`, which has the batch at dim 0, to the rows from `first` on of a tensor of `rows`
// rows at `to`, which has the batch at `batch_dim`.
void CopyRows(const HostTensor& piece, size_t batch_dim, size_t first, size_t rows, char* to) {
  const size_t count = static_cast<size_t>(piece.rows());
  const size_t before = Product(piece.shape, 1, batch_dim + 1);
  const size_t block =
      Product(piece.shape, batch_dim + 1, piece.shape.size()) * DataTypeSize(piece.type);
  if (piece.bytes > 0) {
    CopyBlocks({static_cast<const char*>(piece.data), {1, before}}, {to + first * block, {rows, 1}},
               {before, count}, block);
  }
}

}  // namespace

std::vector<int64_t> ClientShape(std::vector<int64_t> shape, size_t batch_dim) {
  if (Moves(shape, batch_dim)) {
    const auto end = shape.begin() + static_cast<std::ptrdiff_t>(batch_dim) + 1;
    std::rotate(shape.begin(), shape.begin() + 1, end);
  }
  return shape;
}

absl::StatusOr<HostTensor> BatchToFront(HostTensor tensor, size_t batch_dim) {
  if (!Moves(tensor.shape, batch_dim)) {
    return tensor;
  }
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char[]> copy, Allocate(tensor.bytes));
  const size_t rows = static_cast<size_t>(tensor.shape[batch_dim]);
  const size_t before = Product(tensor.shape, 0, batch_dim);
  const size_t block =
      Product(tensor.shape, batch_dim + 1, tensor.shape.size()) * DataTypeSize(tensor.type);
  if (tensor.bytes > 0) {
    CopyBlocks({static_cast<const char*>(tensor.data), {1, rows}}, {copy.get(), {before, 1}},
               {rows, before}, block);
  }
  const auto batch = tensor.shape.begin() + static_cast<std::ptrdiff_t>(batch_dim);
  std::rotate(tensor.shape.begin(), batch, batch + 1);
  tensor.data = copy.get();
  tensor.owner = copy;
  return tensor;
}

absl::StatusOr<HostTensor> BatchFromFront(HostTensor tensor, size_t batch_dim) {
  GatheredTensor whole{tensor.name, tensor.type, tensor.shape, tensor.bytes, {tensor}};
  BRAID_ASSIGN_OR_RETURN(whole, BatchFromFront(std::move(whole), batch_dim));
  return std::move(whole.pieces.front());
}

absl::StatusOr<GatheredTensor> BatchFromFront(GatheredTensor tensor, size_t batch_dim) {
  if (!Moves(tensor.shape, batch_dim)) {
    return tensor;
  }
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char[]> copy, Allocate(tensor.bytes));
  const size_t rows = static_cast<size_t>(tensor.shape.front());
  size_t first = 0;
  for (const HostTensor& piece : tensor.pieces) {
    CopyRows(piece, batch_dim, first, rows, copy.get());
    first += static_cast<size_t>(piece.rows());
  }
  tensor.shape = ClientShape(std::move(tensor.shape), batch_dim);
  HostTensor whole;
  whole.name = tensor.name;
  whole.type = tensor.type;
  whole.shape = tensor.shape;
  whole.data = copy.get();
  whole.bytes = tensor.bytes;
  whole.owner = copy;
  tensor.pieces = {std::move(whole)};
  return tensor;
}

absl::StatusOr<size_t> BatchToFront(const std::vector<TensorSpec>& specs,
                                    std::vector<HostTensor>* tensors) {
  size_t copied = 0;
  for (HostTensor& tensor : *tensors) {
    const auto spec = std::find_if(specs.begin(), specs.end(), [&tensor](const TensorSpec& other) {
      return other.name == tensor.name;
    });
    if (spec == specs.end() || spec->batch_dim == 0 ||
        tensor.shape.size() != spec->dims.size() + 1) {
      continue;
    }
    copied += tensor.bytes;
    BRAID_ASSIGN_OR_RETURN(tensor, BatchToFront(std::move(tensor), spec->batch_dim));
  }
  return copied;
}

}  // namespace braid

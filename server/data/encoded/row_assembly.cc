#include "server/data/encoded/row_assembly.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/base/status.h"
#include "server/data/column.h"
#include "server/data/tensor_conversion.h"

namespace braid {

int RowAssembly::Parts(const std::vector<Decoder::Output>& tensors, int64_t rows,
                       int64_t part_rows) {
  const bool known = std::ranges::all_of(tensors, [](const Decoder::Output& tensor) {
    return std::ranges::count(tensor.row.shape, kUnknownDim) == 0;
  });
  return known ? static_cast<int>(std::max<int64_t>(1, (rows + part_rows - 1) / part_rows)) : 1;
}

absl::StatusOr<RowAssembly> RowAssembly::Create(const std::vector<Decoder::Output>& tensors,
                                                int64_t rows, int64_t part_rows) {
  RowAssembly assembly;
  assembly.part_rows_ = part_rows;
  assembly.counts_.resize(static_cast<size_t>(Parts(tensors, rows, part_rows)));
  for (const Decoder::Output& output : tensors) {
    Tensor& tensor = assembly.tensors_.emplace_back();
    tensor.row_bytes = RowBytes(output.row).value_or(0);
    tensor.whole.name = output.input;
    tensor.whole.type = output.row.type;
    tensor.whole.shape = output.row.shape;
    tensor.whole.shape.insert(tensor.whole.shape.begin(), rows);
    tensor.whole.bytes = static_cast<size_t>(rows) * tensor.row_bytes;
    BRAID_ASSIGN_OR_RETURN(tensor.memory, AllocateHost(tensor.whole.bytes));
  }
  return assembly;
}

void RowAssembly::Put(int part, const std::vector<HostTensor>& tensors) {
  const auto index = static_cast<size_t>(part);
  counts_[index] = tensors.empty() ? 0 : tensors.front().rows();
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::memcpy(
        tensors_[t].memory.get() + index * static_cast<size_t>(part_rows_) * tensors_[t].row_bytes,
        tensors[t].data, tensors[t].bytes);
  }
}

std::vector<HostTensor> RowAssembly::Take() {
  std::vector<HostTensor> whole;
  for (Tensor& tensor : tensors_) {
    size_t rows = 0;
    for (size_t part = 0; part < counts_.size(); ++part) {
      const auto begin = part * static_cast<size_t>(part_rows_);
      const auto count = static_cast<size_t>(counts_[part]);
      if (rows != begin) {  // Closes the gap that rows before have left.
        std::memmove(tensor.memory.get() + rows * tensor.row_bytes,
                     tensor.memory.get() + begin * tensor.row_bytes, count * tensor.row_bytes);
      }
      rows += count;
    }
    tensor.whole.shape.front() = static_cast<int64_t>(rows);
    tensor.whole.bytes = rows * tensor.row_bytes;
    tensor.whole.data = tensor.memory.get();
    tensor.whole.owner = std::move(tensor.memory);
    whole.push_back(std::move(tensor.whole));
  }
  return whole;
}

}  // namespace braid

// Tensors of a batch whose rows are computed in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/decode/decoder.h"

namespace braid {

// Joins the tensors of the parts of a batch. Part p starts at row p * part_rows and has fewer than
// part_rows rows if some are left out. Threads may put different parts at the same time.
class RowAssembly {
 public:
  // Returns the number of parts: 1 if a shape is unknown, because parts could then differ.
  static int Parts(const std::vector<Decoder::Output>& tensors, int64_t rows, int64_t part_rows);

  // Allocates the tensors, whose shapes must be known if there is more than one part.
  static absl::StatusOr<RowAssembly> Create(const std::vector<Decoder::Output>& tensors,
                                            int64_t rows, int64_t part_rows);

  // Copies the tensors of a part, in the order of Create(). No tensors: all rows are left out.
  void Put(int part, const std::vector<HostTensor>& tensors);
  // Returns the tensors of all rows. Call once, after all parts.
  std::vector<HostTensor> Take();

 private:
  struct Tensor {
    HostTensor whole;
    std::shared_ptr<char> memory;
    size_t row_bytes = 0;
  };

  int64_t part_rows_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<int64_t> counts_;  // rows of each part
};

}  // namespace braid

// The targets that losses take: what they have to be to go with an output.
#pragma once

#include <cstdint>
#include <cstring>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "server/base/data_type.h"
#include "server/base/host_tensor.h"
#include "server/training/loss/loss_spec.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Rows [start, start + rows) of a batch's target, whose name is its place in the request:
// "targets[1]".
struct TargetRows {
  const HostTensor* target = nullptr;  // null: the loss takes none
  int64_t start = 0;
  int64_t rows = 0;
};

// The INT64 elements of those rows, read where they lie.
class ClassIndices {
 public:
  explicit ClassIndices(const TargetRows& rows);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    int64_t index = 0;
    std::memcpy(&index, data_ + i * static_cast<int64_t>(sizeof(index)), sizeof(index));
    return index;
  }
  // The row of the batch that element i is in.
  int64_t row(int64_t i) const { return start_ + i / row_size_; }

 private:
  int64_t start_;
  int64_t row_size_;
  int64_t size_;
  const char* data_;
};

// Whether a loss of `kind` takes `target` for class indices.
bool HoldsClasses(LossKind kind, const HostTensor& target);

// Whether `target` has datatype and shape to go with `output`, whose datatype is `type` but for
// autocast. INVALID_ARGUMENT naming targets[i].datatype or .shape.
absl::Status CheckTargetForm(LossKind kind, const LossSpec& spec, DataType type,
                             const at::Tensor& output, const HostTensor& target);

// INVALID_ARGUMENT naming targets[i] for an index that is neither in [0, classes) nor
// `spec.ignore_index`.
absl::Status CheckClasses(const LossSpec& spec, int64_t classes, const TargetRows& rows);

// INVALID_ARGUMENT naming targets[i] for NaN in `values`, which are the rows on a device; with
// `probabilities` for all that is not in [0, 1].
absl::Status CheckValues(const at::Tensor& values, bool probabilities, const TargetRows& rows);

}  // namespace braid

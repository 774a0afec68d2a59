// Targets of losses, and checks that they match an output.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "server/base/data_type.h"
#include "server/base/host_tensor.h"
#include "server/devices/staging.h"
#include "server/training/loss/loss_spec.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Rows [start, start + rows) of a target. Its name is its place in the request: "targets[1]".
struct TargetRows {
  const HostTensor* target = nullptr;  // nullptr: the loss takes no target
  int64_t start = 0;
  int64_t rows = 0;
  // Host memory for copies to the output's device; nullptr: the copies wait for the device.
  Staging* staging = nullptr;
};

// The INT64 elements of these rows, read in place.
class ClassIndices {
 public:
  explicit ClassIndices(const TargetRows& rows);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    int64_t index = 0;
    std::memcpy(&index, data_ + i * static_cast<int64_t>(sizeof(index)), sizeof(index));
    return index;
  }
  // Returns the row of the batch that contains element i.
  int64_t row(int64_t i) const { return start_ + i / row_size_; }

 private:
  int64_t start_;
  int64_t row_size_;
  int64_t size_;
  const char* data_;
};

// Returns true if a loss of `kind` reads `target` as class indices.
bool HoldsClasses(LossKind kind, const HostTensor& target);

// Checks that datatype and shape of `target` match an output of shape `output`, whose datatype is
// `type` except under autocast. INVALID_ARGUMENT naming targets[i].datatype or .shape, or
// targets[i] for an output that the loss cannot take.
absl::Status CheckTargetForm(LossKind kind, const LossSpec& spec, DataType type,
                             const std::vector<int64_t>& output, const HostTensor& target);

// Returns INVALID_ARGUMENT naming targets[i] for an index that is neither in [0, classes) nor
// `spec.ignore_index`.
absl::Status CheckClasses(const LossSpec& spec, int64_t classes, const TargetRows& rows);

// Returns INVALID_ARGUMENT naming targets[i] for NaN in `values`, the rows in host memory; with
// `probabilities` for every value outside [0, 1].
absl::Status CheckValues(const at::Tensor& values, bool probabilities, const TargetRows& rows);

}  // namespace braid

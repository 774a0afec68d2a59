// Targets of losses, and checks that they match an output.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/base/data_type.h"
#include "server/base/host_tensor.h"
#include "server/devices/staging.h"
#include "server/training/loss/loss_spec.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Rows [start, start + rows) of the targets of a loss. The name of a target is its place in the
// request: "targets[1]".
struct TargetRows {
  // In the order of TargetNames(); empty: the loss takes none.
  absl::Span<const HostTensor> targets;
  int64_t start = 0;
  int64_t rows = 0;
  // Host memory for copies to the output's device; nullptr: the copies wait for the device.
  Staging* staging = nullptr;

  // Returns the target that the output is compared with. Requires one.
  const HostTensor& target() const { return targets.front(); }
};

// The INT64 elements of these rows of a target, read in place.
class ClassIndices {
 public:
  explicit ClassIndices(const TargetRows& rows) : ClassIndices(rows, rows.target()) {}
  ClassIndices(const TargetRows& rows, const HostTensor& target);

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

// Returns the names of the targets that a loss with the specification `spec`, which has all
// defaults, takes: the one that the output is compared with first.
std::vector<std::string> TargetNames(LossKind kind, const LossSpec& spec);

// Returns true if a loss of `kind` reads `target` as class indices.
bool HoldsClasses(LossKind kind, const HostTensor& target);

// Checks that datatypes and shapes of `targets` match an output of shape `output`, whose datatype
// is `type` except under autocast. INVALID_ARGUMENT naming targets[i].datatype or .shape, or
// targets[i] for an output that the loss cannot take. Errors show shapes with the batch at
// `batch_dim`, as clients have it.
absl::Status CheckTargetForms(LossKind kind, const LossSpec& spec, DataType type,
                              const std::vector<int64_t>& output,
                              absl::Span<const HostTensor> targets, size_t batch_dim = 0);

// Checks the values of targets that passed CheckTargetForms(). INVALID_ARGUMENT naming targets[i]
// and the row, for class indices or lengths out of range, NaN, and numbers that the loss does not
// take.
absl::Status CheckTargetValues(LossKind kind, const LossSpec& spec,
                               const std::vector<int64_t>& output, const TargetRows& rows);

// Returns INVALID_ARGUMENT naming targets[i] for an index that is neither in [0, classes) nor
// `spec.ignore_index`.
absl::Status CheckClasses(const LossSpec& spec, int64_t classes, const TargetRows& rows);

}  // namespace braid

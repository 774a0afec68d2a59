// Tests with numbers whether the losses over the parts of a batch add up to the loss of the batch.
#pragma once

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Returns the loss, 0-dim, of rows of an output and the same number of rows of a target, in host
// memory.
using LossFunction = absl::FunctionRef<absl::StatusOr<at::Tensor>(const at::Tensor& output,
                                                                  const at::Tensor& target)>;

// Compares the loss of whole batches with the mean over their parts, weighted by rows, or with
// their sum (`reduction`), and does the same with the gradients. The batches are the first rows of
// `outputs` and `targets`, and random batches similar to them: shuffled rows and elements, noise,
// values in the targets' range. Ignores batches for which the loss fails or is not finite, and
// losses that draw random numbers.
//
// `outputs`: [rows, ...] of the first rows of the batch, on any device. `targets`: [rows of the
// whole batch, ...], in host memory. `gradients`: also compares the gradients. Returns
// FAILED_PRECONDITION with the numbers that differ, or the loss's own error on the first rows.
// Blocks while it computes on the calling thread.
absl::Status ProveParts(LossFunction loss, const at::Tensor& outputs, const at::Tensor& targets,
                        Reduction reduction, bool gradients);

}  // namespace braid

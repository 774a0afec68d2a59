// Proof by values that the losses over the parts of a batch add up to the loss over all of it.
#pragma once

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/training/trainer_spec.h"

namespace braid {

// The loss, 0-dim, of rows of an output and of as many rows of a target, all in host memory.
using LossFunction = absl::FunctionRef<absl::StatusOr<at::Tensor>(const at::Tensor& output,
                                                                  const at::Tensor& target)>;

// Compares the loss of whole batches with the mean over their parts, weighted by rows, or with
// their sum (`reduction`), and the gradients alike. The batches are the first rows of `outputs` and
// `targets`, and random ones that resemble them: rows and elements of theirs, noise, values in the
// targets' range. A batch that the loss fails on or is not finite for proves nothing; a loss that
// draws random numbers is not compared.
//
// `outputs`: [rows, ...], on any device, of the first rows of the batch; `targets`: [rows of the
// whole batch, ...], in host memory. `gradients`: compare them too. Returns FAILED_PRECONDITION
// with the evidence, or the loss's own error on the first rows. Blocks while it computes, on the
// calling thread.
absl::Status ProveParts(LossFunction loss, const at::Tensor& outputs, const at::Tensor& targets,
                        Reduction reduction, bool gradients);

}  // namespace braid

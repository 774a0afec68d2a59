// Layout of tensors whose batch is not dim 0 (TensorSpec::batch_dim).
//
// Clients send and receive such tensors with the batch at batch_dim. Everything between the request
// and the model has the batch at dim 0, so it can be split, merged and gathered as rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"

namespace braid {

// Returns `shape`, which has the batch at dim 0, with the batch at dim `batch_dim`. Shapes without
// that dim are returned unchanged.
std::vector<int64_t> ClientShape(std::vector<int64_t> shape, size_t batch_dim);

// Copies `tensor` with dim `batch_dim` moved to the front. Returns it unchanged, without a copy, if
// batch_dim is 0 or the tensor has no such dim. RESOURCE_EXHAUSTED without memory.
absl::StatusOr<HostTensor> BatchToFront(HostTensor tensor, size_t batch_dim);

// Inverse of BatchToFront(): moves dim 0 to `batch_dim`. A GatheredTensor becomes one piece.
absl::StatusOr<HostTensor> BatchFromFront(HostTensor tensor, size_t batch_dim);
absl::StatusOr<GatheredTensor> BatchFromFront(GatheredTensor tensor, size_t batch_dim);

// Calls BatchToFront() for each tensor of a request that has the name and the rank of one of
// `specs`, a batched model's. Leaves others to the checks that follow. Returns the copied bytes.
absl::StatusOr<size_t> BatchToFront(const std::vector<TensorSpec>& specs,
                                    std::vector<HostTensor>* tensors);

}  // namespace braid

// Reads the tensors in an archive of torch.export: weights and constants.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/graph/program.h"

namespace braid {

struct StoredTensor {
  at::Tensor value;     // in host memory; undefined: not in the archive
  bool on_gpu = false;  // was on a GPU at export
};

// Reads the tensors of graph `graph` in the archive at `path`, one per input of `program`. Tensors
// that shared memory at export share it again. Replicas share the tensors, so do not modify them.
// FAILED_PRECONDITION if one is missing, stored as a pickle, or does not match its description.
absl::StatusOr<std::vector<StoredTensor>> ReadStoredTensors(const std::string& path,
                                                            const std::string& graph,
                                                            const Program& program);

// Returns the tensors for a program on `device`. Tensors that were on a GPU at export are copied to
// `device`; those that share memory share it again. Others are returned unchanged.
std::vector<at::Tensor> PlaceTensors(const std::vector<StoredTensor>& tensors, c10::Device device);

}  // namespace braid

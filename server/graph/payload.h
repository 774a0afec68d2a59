// The tensors that an archive of torch.export holds beside its graphs: weights and constants.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/graph/program.h"

namespace braid {

struct StoredTensor {
  at::Tensor value;     // in host memory; undefined: the archive has none for this input
  bool on_gpu = false;  // when it was exported
};

// One per input of `program`, which is graph `graph` of the archive at `path`. Tensors that shared
// memory do so here. Not to be changed: replicas share them. FAILED_PRECONDITION if one is missing,
// is stored as a pickle, or does not fit what the archive says of it.
absl::StatusOr<std::vector<StoredTensor>> ReadStoredTensors(const std::string& path,
                                                            const std::string& graph,
                                                            const Program& program);

// The tensors where a program that runs on `device` wants them. Those that were exported on a GPU
// are copied to `device`, shared memory once; the others stay the same tensors.
std::vector<at::Tensor> PlaceTensors(const std::vector<StoredTensor>& tensors, c10::Device device);

}  // namespace braid

// Memory of a GPU that another process has allocated, by its handle of CUDA's.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/gpu_memory.h"

namespace braid {

// `handle` is the bytes of a cudaIpcMemHandle_t. INVALID_ARGUMENT for what is no handle, or of
// memory that this process cannot open on GPU `device`: its own, for one.
absl::StatusOr<std::unique_ptr<GpuMemory>> OpenIpcMemory(const std::string& handle, int device);

}  // namespace braid

// GPU memory of another process, opened by a CUDA IPC handle.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/gpu_memory.h"

namespace braid {

// Opens `handle`, the bytes of a cudaIpcMemHandle_t, on GPU `device`. INVALID_ARGUMENT if it is not
// a handle or if this process cannot open it, for example because the memory is its own.
absl::StatusOr<std::unique_ptr<GpuMemory>> OpenIpcMemory(const std::string& handle, int device);

}  // namespace braid

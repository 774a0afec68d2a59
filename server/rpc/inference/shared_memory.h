// Tensors of a request that are in its client's shared memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "server/rpc/inference/parameter.h"
#include "server/shared_memory/shared_regions.h"

namespace braid {

inline constexpr char kSharedRegion[] = "shared_memory_region";
inline constexpr char kSharedOffset[] = "shared_memory_offset";
inline constexpr char kSharedBytes[] = "shared_memory_byte_size";

// UNIMPLEMENTED: the answer to whoever registers or uses a region while client shared memory is off
// (`regions` null).
absl::Status SharedMemoryIsOff();

// UNIMPLEMENTED where GPU memory of clients cannot be registered: shared memory is off, or there is
// no GPU.
absl::Status CheckGpuMemory(const SharedRegions* regions);

// What the inputs of a request take in shared memory: they count among the bytes in flight as if
// they had been sent, for they may have to be copied. What ReadSlice() refuses takes none.
size_t SharedInputBytes(const SharedRegions* regions, const inference::ModelInferRequest& request);

// RESOURCE_EXHAUSTED if `shared`, as above, is more than `most`, which all requests together may
// take.
absl::Status CheckSharedInputs(size_t shared, size_t most);

// Memory for `bytes` bytes of such an input. RESOURCE_EXHAUSTED if there is none.
absl::StatusOr<std::shared_ptr<char[]>> MakeCopyRoom(size_t bytes);

// Where `parameters` of the input or output `field` ("inputs[0]") say that it is; no region if they
// do not. UNIMPLEMENTED if `regions` is null, INVALID_ARGUMENT for a region or range that is none.
absl::StatusOr<SharedSlice> ReadSlice(const SharedRegions* regions, const Parameters& parameters,
                                      const std::string& field);

}  // namespace braid

// Tensors of requests in shared memory of the client.
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

// UNIMPLEMENTED: shared memory of clients is disabled, or not allowed for this caller.
absl::Status SharedMemoryDisabled();

// UNIMPLEMENTED if shared memory is disabled (`regions` null) or the server has no GPU.
absl::Status CheckGpuMemory(const SharedRegions* regions);

// Returns the bytes of a request's inputs in shared memory. They count as bytes in flight, because
// they may have to be copied. Ignores slices that ReadSlice() rejects.
size_t SharedInputBytes(const SharedRegions* regions, const inference::ModelInferRequest& request);

// RESOURCE_EXHAUSTED if `shared` bytes exceed the limit of all requests together.
absl::Status CheckSharedInputs(size_t shared, size_t limit);

// Allocates memory for a copy of an input. RESOURCE_EXHAUSTED if that fails.
absl::StatusOr<std::shared_ptr<char[]>> AllocateCopy(size_t bytes);

// Reads the shared memory parameters of the input or output `field` ("inputs[0]"). Returns an empty
// slice if there are none. UNIMPLEMENTED if `regions` is null; INVALID_ARGUMENT for an unknown
// region or a range outside of it.
absl::StatusOr<SharedSlice> ReadSlice(const SharedRegions* regions, const Parameters& parameters,
                                      const std::string& field);

}  // namespace braid

// Tensors of a request that are in its client's shared memory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/parameter.h"
#include "server/storage/shared_regions.h"

namespace braid {

inline constexpr char kSharedRegion[] = "shared_memory_region";
inline constexpr char kSharedOffset[] = "shared_memory_offset";
inline constexpr char kSharedBytes[] = "shared_memory_byte_size";

// What calls say while client shared memory is off (`regions` null).
absl::Status SharedMemoryIsOff();

// UNIMPLEMENTED where GPU memory of clients is not offered: shared memory is off, or there is no
// GPU.
absl::Status CheckGpuMemory(const SharedRegions* regions);

// Where `parameters` of the input or output `field` ("inputs[0]") say that it is; no region if they
// do not. UNIMPLEMENTED if `regions` is null, INVALID_ARGUMENT for a region or range that is none.
absl::StatusOr<SharedSlice> ReadSlice(const SharedRegions* regions, const Parameters& parameters,
                                      const std::string& field);

}  // namespace braid

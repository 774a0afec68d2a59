#include "server/rpc/inference/shared_memory.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

// Upper limit of sums, to prevent overflow.
constexpr size_t kMaxBytes = size_t{1} << 62;

}  // namespace

absl::Status SharedMemoryDisabled() {
  return absl::UnimplementedError(
      "shared memory of clients is disabled for this caller (it requires the server flag "
      "--allow_client_shared_memory and the role infer for every model)");
}

absl::Status CheckGpuMemory(const SharedRegions* regions) {
  if (regions == nullptr) {
    return SharedMemoryDisabled();
  }
  if (!regions->has_gpus()) {
    return absl::UnimplementedError(
        "CUDA shared memory is not supported: this server has no GPU (use system shared memory)");
  }
  return absl::OkStatus();
}

size_t SharedInputBytes(const SharedRegions* regions, const inference::ModelInferRequest& request) {
  size_t total = 0;
  for (const auto& input : request.inputs()) {
    if (const Parameters& parameters = input.parameters(); !parameters.empty()) {
      const absl::StatusOr<SharedSlice> slice = ReadSlice(regions, parameters, "inputs");
      total = std::min(total + (slice.ok() ? slice->bytes : 0), kMaxBytes);
    }
  }
  return total;
}

absl::Status CheckSharedInputs(size_t shared, size_t limit) {
  if (shared <= limit) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("the inputs take ", shared,
                                                   " bytes of shared memory (expected at most ",
                                                   limit, ", --max_request_bytes)"));
}

absl::StatusOr<std::shared_ptr<char[]>> AllocateCopy(size_t bytes) {
  std::shared_ptr<char[]> room(new (std::nothrow) char[bytes]);
  if (room == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: cannot copy ", bytes, " bytes of shared memory"));
  }
  return room;
}

absl::StatusOr<SharedSlice> ReadSlice(const SharedRegions* regions, const Parameters& parameters,
                                      const std::string& field) {
  const inference::InferParameter* region = FindParameter(parameters, kSharedRegion);
  if (region == nullptr) {
    for (const char* other : {kSharedOffset, kSharedBytes}) {
      if (FindParameter(parameters, other) != nullptr) {
        return InvalidField(ParameterField(field, other),
                            absl::StrCat("set without ", kSharedRegion, " (expected both)"));
      }
    }
    return SharedSlice{};
  }
  if (regions == nullptr) {
    const absl::Status off = SharedMemoryDisabled();
    return absl::Status(off.code(),
                        absl::StrCat(ParameterField(field, kSharedRegion), ": ", off.message()));
  }
  BRAID_ASSIGN_OR_RETURN(const std::string name,
                         ReadString(*region, ParameterField(field, kSharedRegion)));
  BRAID_ASSIGN_OR_RETURN(const int64_t offset, ReadIntegerOr(parameters, field, kSharedOffset, 0));
  BRAID_ASSIGN_OR_RETURN(const int64_t bytes, ReadIntegerOr(parameters, field, kSharedBytes, 0));
  return regions->Find(name, offset, bytes, ParameterField(field, kSharedRegion));
}

}  // namespace braid

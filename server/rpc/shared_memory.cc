#include "server/rpc/shared_memory.h"

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {

absl::Status SharedMemoryIsOff() {
  return absl::UnimplementedError(
      "shared memory of clients is off, or not for this one; the server's flag "
      "--allow_client_shared_memory allows it to who has the role infer for every model");
}

absl::Status CheckGpuMemory(const SharedRegions* regions) {
  if (regions == nullptr) {
    return SharedMemoryIsOff();
  }
  if (!regions->has_gpus()) {
    return absl::UnimplementedError(
        "CUDA shared memory is not offered: this server has no GPU; system shared memory is");
  }
  return absl::OkStatus();
}

absl::StatusOr<SharedSlice> ReadSlice(const SharedRegions* regions, const Parameters& parameters,
                                      const std::string& field) {
  const inference::InferParameter* region = FindParameter(parameters, kSharedRegion);
  if (region == nullptr) {
    for (const char* other : {kSharedOffset, kSharedBytes}) {
      if (FindParameter(parameters, other) != nullptr) {
        return InvalidField(ParameterField(field, other),
                            absl::StrCat("is there without ", kSharedRegion, "; expected both"));
      }
    }
    return SharedSlice{};
  }
  if (regions == nullptr) {
    const absl::Status off = SharedMemoryIsOff();
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

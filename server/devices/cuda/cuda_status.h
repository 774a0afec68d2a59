// CUDA and NCCL results as Status values, with the expression that failed.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cuda_runtime_api.h"
#include "nccl.h"

namespace braid {

inline absl::Status CudaStatus(cudaError_t result, const char* expression) {
  if (result == cudaSuccess) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(expression, ": ", cudaGetErrorString(result)));
}

// Returns true if every later call in this process fails after the error `result`, because the
// GPU's context and its memory are lost. CUDA documents this for most of these errors.
inline bool EndsContext(cudaError_t result) {
  switch (result) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

inline absl::Status NcclStatus(ncclResult_t result, const char* expression) {
  if (result == ncclSuccess) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(expression, ": ", ncclGetErrorString(result), " (",
                                          ncclGetLastError(nullptr), ")"));
}

}  // namespace braid

#define BRAID_CUDA(expression) ::braid::CudaStatus((expression), #expression)
#define BRAID_NCCL(expression) ::braid::NcclStatus((expression), #expression)

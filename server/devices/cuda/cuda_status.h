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

// Whether `result` is an error after which every call in this process fails: the GPU's context is
// gone, with all that its memory held. CUDA says so of most of them; uncorrectable memory and
// NVLink errors, a destroyed context and an unknown error leave nothing to go on with either.
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

// A stand-in for libcuda.so.1 on which CUDA does not start: cuInit() fails with the code in
// FAKE_CUDA_INIT. FAKE_CUDA_VERSION is the version that the driver supports, 13020 for 13.2.
#include <cstdlib>
#include <cstring>

#include "cuda.h"

namespace {

int FromEnvironment(const char* name) {
  return static_cast<int>(std::strtol(std::getenv(name), nullptr, /*base=*/10));
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int) { return static_cast<CUresult>(FromEnvironment("FAKE_CUDA_INIT")); }

CUresult cuDriverGetVersion(int* version) {
  *version = FromEnvironment("FAKE_CUDA_VERSION");
  return CUDA_SUCCESS;
}

// The CUDA runtime takes all functions from here.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): in the style of this code
CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                             CUdriverProcAddressQueryResult* found) {
  *function = nullptr;
  if (std::strcmp(name, "cuInit") == 0) {
    *function = reinterpret_cast<void*>(&cuInit);
  } else if (std::strcmp(name, "cuDriverGetVersion") == 0) {
    *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  } else if (std::strcmp(name, "cuGetProcAddress") == 0) {
    *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  }
  if (found != nullptr) {
    *found =
        *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

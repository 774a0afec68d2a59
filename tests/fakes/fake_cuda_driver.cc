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
CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int, cuuint64_t,
                             CUdriverProcAddressQueryResult* status) {
  *pfn = nullptr;
  if (std::strcmp(symbol, "cuInit") == 0) {
    *pfn = reinterpret_cast<void*>(&cuInit);
  } else if (std::strcmp(symbol, "cuDriverGetVersion") == 0) {
    *pfn = reinterpret_cast<void*>(&cuDriverGetVersion);
  } else if (std::strcmp(symbol, "cuGetProcAddress") == 0) {
    *pfn = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  }
  if (status != nullptr) {
    *status = *pfn != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *pfn != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

#include "server/devices/cuda/cuda_status.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

// The errors for which the comments of CUDA's header ask that the process be "relaunched".
std::vector<cudaError_t> ErrorsThatRequireARestart() {
  std::ifstream header(BRAID_CUDA_INCLUDE_DIR "/driver_types.h");
  std::vector<cudaError_t> errors;
  std::string comment;
  for (std::string line; std::getline(header, line);) {
    comment += line;
    // "    cudaErrorAssert                       =     710,"
    const std::vector<std::string> sides = absl::StrSplit(line, '=');
    int value = 0;
    if (absl::StartsWith(absl::StripAsciiWhitespace(line), "cudaError") && sides.size() == 2 &&
        absl::SimpleAtoi(absl::StripSuffix(absl::StripAsciiWhitespace(sides[1]), ","), &value)) {
      if (absl::StrContains(comment, "relaunched")) {
        errors.push_back(static_cast<cudaError_t>(value));
      }
      comment.clear();
    }
  }
  return errors;
}

TEST(EndsContextTest, CoversEveryErrorAfterWhichCudaRequiresARestart) {
  const std::vector<cudaError_t> errors = ErrorsThatRequireARestart();
  EXPECT_GE(errors.size(), 12);
  for (const cudaError_t error : errors) {
    EXPECT_TRUE(EndsContext(error)) << error;
  }
}

TEST(EndsContextTest, CoversErrorsThatLeaveNoUsableContext) {
  for (const cudaError_t error : {cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
                                  cudaErrorContextIsDestroyed, cudaErrorUnknown}) {
    EXPECT_TRUE(EndsContext(error)) << error;
  }
}

TEST(EndsContextTest, IsFalseForTransientErrors) {
  for (const cudaError_t error :
       {cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorNotReady,
        cudaErrorNoKernelImageForDevice, cudaErrorLaunchOutOfResources,
        cudaErrorInvalidConfiguration, cudaErrorNotSupported, cudaErrorPeerAccessUnsupported}) {
    EXPECT_FALSE(EndsContext(error)) << error;
  }
}

}  // namespace
}  // namespace braid

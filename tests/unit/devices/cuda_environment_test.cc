#include "server/devices/cuda_environment.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::IsNull;
using ::testing::StrEq;

constexpr char kModules[] = "CUDA_MODULE_LOADING";
constexpr char kAllocator[] = "PYTORCH_ALLOC_CONF";
constexpr char kOldAllocator[] = "PYTORCH_CUDA_ALLOC_CONF";

class CudaEnvironmentTest : public ::testing::Test {
 protected:
  CudaEnvironmentTest() { Clear(); }
  ~CudaEnvironmentTest() override { Clear(); }

  static void Clear() {
    for (const char* variable : {kModules, kAllocator, kOldAllocator}) {
      unsetenv(variable);
    }
  }
  void Set(int gpus) const {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      root_.Write("proc/driver/nvidia/gpus/0000:3b:00." + std::to_string(gpu) + "/information", "");
    }
    SetCudaEnvironment(root_.path());
  }

  const TempDir root_;
};

TEST_F(CudaEnvironmentTest, SetsVariablesOnSeveralGpus) {
  Set(/*gpus=*/2);
  EXPECT_THAT(getenv(kModules), StrEq("EAGER"));
  EXPECT_THAT(getenv(kAllocator), StrEq("expandable_segments:True"));
}

TEST_F(CudaEnvironmentTest, KeepsVariablesOfTheUser) {
  setenv(kModules, "LAZY", /*overwrite=*/1);
  setenv(kAllocator, "backend:cudaMallocAsync", /*overwrite=*/1);
  Set(/*gpus=*/2);
  EXPECT_THAT(getenv(kModules), StrEq("LAZY"));
  EXPECT_THAT(getenv(kAllocator), StrEq("backend:cudaMallocAsync"));
}

TEST_F(CudaEnvironmentTest, KeepsTheOlderAllocatorVariable) {
  setenv(kOldAllocator, "max_split_size_mb:64", /*overwrite=*/1);
  Set(/*gpus=*/2);
  EXPECT_THAT(getenv(kAllocator), IsNull());
}

TEST_F(CudaEnvironmentTest, SetsNothingOnOneGpu) {
  Set(/*gpus=*/1);
  EXPECT_THAT(getenv(kModules), IsNull());
  EXPECT_THAT(getenv(kAllocator), IsNull());
}

TEST_F(CudaEnvironmentTest, SetsNothingWithoutADriver) {
  Set(/*gpus=*/0);
  EXPECT_THAT(getenv(kModules), IsNull());
}

}  // namespace
}  // namespace braid

// Tensors of requests in the memory of a GPU; those in system shared memory have end-to-end tests.
#include "server/rpc/inference/shared_memory.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/inference/requested_outputs.h"
#include "server/rpc/inference/tensor_codec.h"
#include "tests/fakes/fake_gpus.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

template <typename Message>
void Place(Message* message, int64_t offset, int64_t bytes) {
  auto& parameters = *message->mutable_parameters();
  parameters[kSharedRegion].set_string_param("r");
  parameters[kSharedOffset].set_int64_param(offset);
  parameters[kSharedBytes].set_int64_param(bytes);
}

// A region "r" of 16 floats on a GPU: 0, 1, 2, …
class GpuTensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string& allocation = gpus_.allocations["handle"];
    for (int i = 0; i < 16; ++i) {
      const auto value = static_cast<float>(i);
      allocation.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    ASSERT_THAT(regions_.RegisterGpu("r", "handle", 0, 64), IsOk());
  }

  // A request for the input x, FP32 [2, 2], at `offset` of the region.
  static inference::ModelInferRequest Request(int64_t offset, int64_t bytes) {
    inference::ModelInferRequest request;
    auto* input = request.add_inputs();
    input->set_name("x");
    input->set_datatype("FP32");
    input->add_shape(2);
    input->add_shape(2);
    Place(input, offset, bytes);
    return request;
  }

  FakeGpus gpus_;
  SharedRegions regions_{gpus_.Source(1)};
  std::vector<SharedSlice> slices_;
};

TEST_F(GpuTensorsTest, InputsAreCopiedToTheHost) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, ReadInputs(Request(8, 16), &regions_, &slices_));
  ASSERT_THAT(tensors, SizeIs(1));
  EXPECT_THAT(ValuesOf<float>(tensors[0]), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(slices_, SizeIs(1));
}

TEST_F(GpuTensorsTest, RejectsInputsOutsideTheRegion) {
  EXPECT_THAT(ReadInputs(Request(56, 16), &regions_, &slices_),
              RefusesField("inputs[0].parameters.shared_memory_region", HasSubstr("exceed")));
  EXPECT_THAT(ReadInputs(Request(0, 12), &regions_, &slices_),
              RefusesField("inputs[0].parameters.shared_memory_byte_size", HasSubstr("is 12")));
}

TEST_F(GpuTensorsTest, ReportsAFailedGpuCopy) {
  gpus_.fault = absl::InternalError("the copy failed");
  EXPECT_THAT(ReadInputs(Request(0, 16), &regions_, &slices_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("the copy failed")));
}

TEST_F(GpuTensorsTest, OutputsAreCopiedFromTheHost) {
  ModelConfig config;
  config.outputs.resize(1);
  config.outputs[0].name = "y";
  inference::ModelInferRequest request;
  auto* output = request.add_outputs();
  output->set_name("y");
  Place(output, 4, 16);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto wanted, ReadRequestedOutputs(config, request, &regions_));
  InferenceResult result;
  result.outputs.push_back(
      {"y",
       DataType::kFp32,
       {3},
       12,
       {MakeHost<float>("y", {2}, {70, 80}), MakeHost<float>("y", {1}, {90})}});
  inference::ModelInferResponse response;
  ASSERT_THAT(WriteOutputs(config, result, wanted, &response), IsOk());
  std::vector<float> region(5);
  std::memcpy(region.data(), gpus_.allocations["handle"].data(), 20);
  EXPECT_THAT(region, ElementsAre(0, 70, 80, 90, 4));
  EXPECT_EQ(response.outputs(0).parameters().at(kSharedRegion).string_param(), "r");
  EXPECT_EQ(response.outputs(0).parameters().at(kSharedBytes).int64_param(), 12);
  EXPECT_THAT(response.raw_output_contents(), ElementsAre(""));
}

TEST_F(GpuTensorsTest, SharedInputsCountAsBytesInFlight) {
  inference::ModelInferRequest request = Request(0, 16);
  EXPECT_EQ(SharedInputBytes(&regions_, request), 16);
  *request.add_inputs() = request.inputs(0);
  EXPECT_EQ(SharedInputBytes(&regions_, request), 32);
  request.add_inputs();  // one that is sent
  EXPECT_EQ(SharedInputBytes(&regions_, request), 32);
  EXPECT_THAT(CheckSharedInputs(32, 32), IsOk());
  EXPECT_THAT(CheckSharedInputs(33, 32),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("33 bytes")));
}

TEST_F(GpuTensorsTest, RejectedInputsCountNothing) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(SharedInputBytes(&regions_, Request(0, kMost)), 0);
  EXPECT_EQ(SharedInputBytes(&regions_, Request(60, 16)), 0);
  EXPECT_EQ(SharedInputBytes(&regions_, Request(0, -5)), 0);
  EXPECT_EQ(SharedInputBytes(nullptr, Request(0, 16)), 0);
}

TEST(CheckGpuMemoryTest, ReportsDisabledMemoryOrMissingGpu) {
  EXPECT_THAT(CheckGpuMemory(nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("--allow_client_shared")));
  const SharedRegions without_gpus;
  EXPECT_THAT(CheckGpuMemory(&without_gpus),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no GPU")));
  FakeGpus gpus;
  const SharedRegions regions(gpus.Source(1));
  EXPECT_THAT(CheckGpuMemory(&regions), IsOk());
}

}  // namespace
}  // namespace braid

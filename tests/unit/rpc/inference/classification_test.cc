#include "server/rpc/inference/classification.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

// The strings of the reply's only output.
std::vector<std::string> Classify(const HostTensor& tensor, const TensorSpec& spec, bool batched,
                                  int64_t classes, std::vector<int64_t>* shape) {
  inference::ModelInferResponse response;
  WriteClasses({tensor.name, tensor.type, tensor.shape, tensor.bytes, {tensor}}, spec, batched,
               classes, &response);
  EXPECT_EQ(response.outputs(0).datatype(), "BYTES");
  EXPECT_EQ(response.outputs(0).name(), "y");
  shape->assign(response.outputs(0).shape().begin(), response.outputs(0).shape().end());
  std::vector<std::string> texts;
  const std::string& raw = response.raw_output_contents(0);
  for (size_t at = 0; at < raw.size();) {
    uint32_t length = 0;
    std::memcpy(&length, raw.data() + at, sizeof(length));
    texts.push_back(raw.substr(at + sizeof(length), length));
    at += sizeof(length) + length;
  }
  return texts;
}

TEST(ClassificationTest, ReturnsTheLargestElementsPerRowWithLabels) {
  TensorSpec spec;
  spec.labels = {"cat", "", "dog"};
  std::vector<int64_t> shape;
  const HostTensor tensor = MakeHost<float>("y", {2, 3}, {0.5F, -1.0F, 2.0F, 1.0F, 3.0F, 1.0F});
  EXPECT_THAT(Classify(tensor, spec, true, 2, &shape),
              ElementsAre("2.000000:2:dog", "0.500000:0:cat", "3.000000:1", "1.000000:0:cat"));
  EXPECT_THAT(shape, ElementsAre(2, 2));
}

TEST(ClassificationTest, ReturnsFewerClassesIfARowIsShorter) {
  std::vector<int64_t> shape;
  EXPECT_THAT(Classify(MakeHost<int64_t>("y", {1, 2}, {-5, 7}), {}, true,
                       std::numeric_limits<int64_t>::max(), &shape),
              ElementsAre("7:1", "-5:0"));
  EXPECT_THAT(shape, ElementsAre(1, 2));
}

TEST(ClassificationTest, AnUnbatchedModelHasOneRow) {
  std::vector<int64_t> shape;
  EXPECT_THAT(Classify(MakeHost<double>("y", {2, 2}, {1, 4, 3, 2}), {}, false, 2, &shape),
              ElementsAre("4.000000:1", "3.000000:2"));
  EXPECT_THAT(shape, ElementsAre(2));
}

TEST(ClassificationTest, NanIsTheSmallest) {
  std::vector<int64_t> shape;
  EXPECT_THAT(Classify(MakeHost<float>("y", {1, 3}, {std::nanf(""), -1.0F, std::nanf("")}), {},
                       true, 2, &shape),
              ElementsAre("-1.000000:1", "nan:0"));
}

TEST(ClassificationTest, ARowWithoutElementsHasNoClasses) {
  std::vector<int64_t> shape;
  EXPECT_THAT(Classify(MakeHost<float>("y", {2, 0}, {}), {}, true, 2, &shape), ElementsAre());
  EXPECT_THAT(shape, ElementsAre(2, 0));
}

}  // namespace
}  // namespace braid

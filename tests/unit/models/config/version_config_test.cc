#include "server/models/config/version_config.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_decoder.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

TensorSpec Number(const std::string& name) {
  TensorSpec spec{name, DataType::kInt64, {}, /*broadcast=*/true};
  spec.scalar = true;
  return spec;
}

// Model with an embedding of `words` rows. declared: the range is configured.
ModelConfig Words(int64_t words, bool declared = false) {
  ModelConfig config = MakeConfig(8, {{"ids", DataType::kInt64, {3}}, {"x", DataType::kFp32, {4}}},
                                  {{"y", DataType::kFp32, {2}}});
  config.inputs[0].range = ValueRange{0, words - 1};
  config.inputs[0].range_derived = !declared;
  config.inputs.push_back(Number("power"));
  return config;
}

TEST(VersionConfigTest, DeclaredConfigOmitsDerivedFields) {
  const ModelConfig found = DeclaredConfig(Words(10));
  EXPECT_THAT(found.inputs,
              ElementsAre(Field(&TensorSpec::name, "ids"), Field(&TensorSpec::name, "x")));
  EXPECT_FALSE(found.inputs[0].range);
  EXPECT_FALSE(found.inputs[0].range_derived);
  EXPECT_EQ(found.max_batch_size, 8);
  EXPECT_EQ(DeclaredConfig(Words(10, /*declared=*/true)).inputs[0].range->max, 9);
}

TEST(VersionConfigTest, AppliesCurrentSettings) {
  ModelConfig current = Words(20);
  current.max_batch_size = 64;
  current.inputs.back() = Number("scale");
  const auto config = ApplyCurrentConfig(Words(10), current);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->max_batch_size, 64);
  EXPECT_EQ(config->inputs[0].range->max, 9);  // range of its embedding
  EXPECT_TRUE(config->inputs[0].range_derived);
  EXPECT_EQ(config->inputs[2].name, "power");
  EXPECT_EQ(ApplyCurrentConfig(Words(10), Words(7, /*declared=*/true))->inputs[0].range->max, 6);
  EXPECT_FALSE(ApplyCurrentConfig(Words(10, /*declared=*/true), Words(7))->inputs[0].range);
}

TEST(VersionConfigTest, AppliesCurrentDecoders) {
  ModelConfig current = Words(10);
  current.inputs[0].decode = TextSpec();
  current.inputs[0].decode_json = "{}";
  current.inputs[0].decoder = std::make_shared<FakeDecoder>(kUnknownDim);
  current.inputs[0].pad = PadSpec{.multiple = 8};
  ModelConfig before = Words(10);
  before.inputs[1].decode = ImageSpec();
  const auto config = ApplyCurrentConfig(before, current);
  ASSERT_THAT(config, IsOk());
  EXPECT_TRUE(config->inputs[0].decode);
  EXPECT_EQ(config->inputs[0].decode_json, "{}");
  EXPECT_EQ(config->inputs[0].decoder, current.inputs[0].decoder);
  EXPECT_FALSE(config->inputs[1].decode);
  EXPECT_EQ(config->inputs[0].pad, current.inputs[0].pad);
}

TEST(VersionConfigTest, RejectsOtherTensors) {
  const auto refused = [](auto change, const std::string& what) {
    ModelConfig current = Words(10);
    change(&current);
    EXPECT_THAT(ApplyCurrentConfig(Words(10), current),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("has an incompatible configuration"), HasSubstr(what))));
  };
  refused([](ModelConfig* c) { c->inputs[1].dims = {5}; },
          "input[1] is 'x' FP32[5] (expected 'x' FP32[4]");
  refused([](ModelConfig* c) { c->inputs[1].name = std::string("z"); }, "is 'z' FP32[4]");
  refused([](ModelConfig* c) { c->inputs[1].type = DataType::kFp64; }, "is 'x' FP64[4]");
  refused([](ModelConfig* c) { c->inputs[1].broadcast = true; }, "is 'x' FP32[4], broadcast");
  refused(
      [](ModelConfig* c) {
        c->inputs[1].reshape = std::vector<int64_t>{2, 2};
      },
      "is 'x' FP32[4], reshaped to [2, 2]");
  refused([](ModelConfig* c) { c->inputs.erase(c->inputs.begin() + 1); }, "is none");
  refused([](ModelConfig* c) { c->outputs.push_back(c->outputs[0]); },
          "output[1] is 'y' FP32[2] (expected none");
  refused([](ModelConfig* c) { c->max_batch_size = 0; }, "max_batch_size is 0 (expected 8");
}

}  // namespace
}  // namespace braid

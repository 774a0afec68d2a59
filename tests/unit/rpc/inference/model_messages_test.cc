#include "server/rpc/inference/model_messages.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig Config(int64_t max_batch_size) {
  ModelConfig config =
      MakeConfig(max_batch_size, {{"x", DataType::kFp32, {3, -1}}}, {{"y", DataType::kBf16, {}}});
  config.max_queue_delay = absl::Milliseconds(2);
  return config;
}

TEST(FindVersionTest, RejectsTextThatIsNeitherNumberNorLabel) {
  const ServedModels models({}, nullptr);
  for (const char* text : {"0", "-1", "1.0", "99999999999999999999", "a b"}) {
    EXPECT_THAT(FindVersion(models, "m", text, "model_version"),
                RefusesField("model_version", HasSubstr(text)));
  }
}

TEST(FindVersionTest, FindsNumbersAndLabels) {
  const ServedModels models({}, nullptr);
  for (const char* text : {"", "12", "one", "2026-11-26a"}) {
    EXPECT_THAT(FindVersion(models, "m", text, "version"),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("unknown model 'm'")));
  }
}

TEST(FillMetadataTest, ShapesIncludeTheBatchDimension) {
  inference::ModelMetadataResponse response;
  FillMetadata(Config(8), {3, 5}, &response);
  EXPECT_EQ(response.name(), "m");
  EXPECT_THAT(response.versions(), ElementsAre("3", "5"));
  EXPECT_EQ(response.platform(), "pytorch_libtorch");
  EXPECT_EQ(response.inputs(0).name(), "x");
  EXPECT_EQ(response.inputs(0).datatype(), "FP32");
  EXPECT_THAT(response.inputs(0).shape(), ElementsAre(-1, 3, -1));
  EXPECT_EQ(response.outputs(0).datatype(), "BF16");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(-1));
  inference::ModelMetadataResponse whole;
  FillMetadata(Config(0), {3}, &whole);
  EXPECT_THAT(whole.inputs(0).shape(), ElementsAre(3, -1));
}

TEST(FillMetadataTest, DecodedInputsAreBytes) {
  ModelConfig config = Config(8);
  config.inputs[0].decode = ImageSpec();
  config.inputs[0].decode_json = "{\"image\": {}}";
  inference::ModelMetadataResponse response;
  FillMetadata(config, {3}, &response);
  EXPECT_EQ(response.inputs(0).datatype(), "BYTES");
  EXPECT_THAT(response.inputs(0).shape(), ElementsAre(-1, 1));
  // The configuration has the tensor's datatype, so that a client can send it back.
  inference::ModelConfig message;
  FillConfig(config, &message);
  EXPECT_EQ(message.input(0).data_type(), inference::TYPE_FP32);
  EXPECT_THAT(message.input(0).dims(), ElementsAre(3, -1));
  EXPECT_EQ(message.parameters().at("decode.x").string_value(), "{\"image\": {}}");
}

TEST(FillConfigTest, ContainsTheConfiguration) {
  inference::ModelConfig message;
  FillConfig(Config(8), &message);
  EXPECT_EQ(message.name(), "m");
  EXPECT_EQ(message.backend(), "pytorch");
  EXPECT_EQ(message.max_batch_size(), 8);
  EXPECT_EQ(message.dynamic_batching().max_queue_delay_microseconds(), 2000);
  EXPECT_EQ(message.input(0).data_type(), inference::TYPE_FP32);
  EXPECT_THAT(message.input(0).dims(), ElementsAre(3, -1));
  EXPECT_EQ(message.output(0).data_type(), inference::TYPE_BF16);
  inference::ModelConfig whole;
  FillConfig(Config(0), &whole);
  // Its queue is configured all the same.
  EXPECT_EQ(whole.dynamic_batching().max_queue_delay_microseconds(), 2000);
  inference::ModelConfig bare;
  FillConfig(MakeConfig(0, {}, {}), &bare);
  EXPECT_FALSE(bare.has_dynamic_batching());
  ModelConfig bounded = MakeConfig(0, {}, {});
  bounded.default_queue_policy.max_queue_size = 5;
  inference::ModelConfig told;
  FillConfig(bounded, &told);
  EXPECT_EQ(told.dynamic_batching().default_queue_policy().max_queue_size(), 5);
}

}  // namespace
}  // namespace braid

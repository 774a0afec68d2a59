#include "server/models/input_decoders.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decode/decoder.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::NotNull;

constexpr char kField[] = "parameters[\"decode.image\"]";

// Decodes to FP32 [3, 224, 224].
ImageSpec Image() {
  ImageSpec spec;
  spec.transforms = {Resize{{256}}, CenterCrop{224, 224}, ToFloat{}};
  return spec;
}

ModelConfig Config(DataType type, const std::vector<int64_t>& dims, int64_t max_batch_size = 8) {
  ModelConfig config =
      MakeConfig(max_batch_size, {{"image", type, dims}}, {{"y", DataType::kFp32, {5}}});
  config.inputs[0].decode = Image();
  return config;
}

TEST(MakeDecodersTest, AcceptsRowsThatFit) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{3, 224, 224}, {-1, -1, 224}}) {
    ModelConfig config = Config(DataType::kFp32, dims);
    ASSERT_THAT(MakeDecoders({}, &config), IsOk());
    EXPECT_THAT(config.inputs[0].decoder, NotNull());
  }
}

TEST(MakeDecodersTest, LeavesOtherInputsAlone) {
  ModelConfig config = Config(DataType::kFp32, {3});
  config.inputs[0].decode.reset();
  ASSERT_THAT(MakeDecoders({}, &config), IsOk());
  EXPECT_EQ(config.inputs[0].decoder, nullptr);
}

TEST(MakeDecodersTest, RejectsRowsThatDoNotFit) {
  for (ModelConfig config :
       {Config(DataType::kFp16, {3, 224, 224}), Config(DataType::kFp32, {3, 224, 225}),
        Config(DataType::kFp32, {3, 224}), Config(DataType::kFp32, {1, 3, 224, 224})}) {
    EXPECT_THAT(MakeDecoders({}, &config),
                RefusesField(kField, AllOf(HasSubstr("decodes to FP32 [3, 224, 224] for 'image'"),
                                           HasSubstr(ShapeString(config.inputs[0].dims)))));
  }
}

TEST(MakeDecodersTest, RejectsInputsWithoutABatchDimension) {
  ModelConfig whole = Config(DataType::kFp32, {3, 224, 224}, /*max_batch_size=*/0);
  EXPECT_THAT(MakeDecoders({}, &whole), RefusesField(kField, HasSubstr("max_batch_size above 0")));
  ModelConfig broadcast = Config(DataType::kFp32, {3, 224, 224});
  broadcast.inputs[0].broadcast = true;
  EXPECT_THAT(MakeDecoders({}, &broadcast), RefusesField(kField, HasSubstr("not broadcast")));
}

TEST(MakeDecodersTest, NamesTheFieldOfAMissingTokenizer) {
  const TempDir folder;
  ModelConfig config = Config(DataType::kInt64, {-1});
  TextSpec text;
  text.tokenizer = "tokenizer.json";
  config.inputs[0].decode = text;
  EXPECT_THAT(MakeDecoders({folder.path()}, &config),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("parameters[\"decode.image\"].tokenizer"),
                             HasSubstr("tokenizer.json"))));
}

// Model with the inputs ids [B, 1 to 64] and mask [B, any], and parameters["pad.ids"].
ModelConfig Padded(const PadSpec& pad, DataType mask = DataType::kBool) {
  ModelConfig config = MakeConfig(8, {{"ids", DataType::kInt64, {-1}}, {"mask", mask, {-1}}},
                                  {{"y", DataType::kFp32, {5}}});
  config.inputs[0].variable_dims = {{.dim = 0, .symbol = "length", .min = 1, .max = 64}};
  config.inputs[0].pad = pad;
  return config;
}

TEST(MakeDecodersTest, PadsAnInputAndItsMask) {
  ModelConfig config = Padded({.multiple = 16, .mask = "mask"});
  ASSERT_THAT(MakeDecoders({}, &config), IsOk());
  EXPECT_THAT(config.inputs[0].padding, NotNull());
  EXPECT_THAT(config.inputs[1].padding, NotNull());
  EXPECT_EQ(config.inputs[0].decoder, nullptr);
}

TEST(MakeDecodersTest, RejectsPaddingBeyondTheBounds) {
  ModelConfig config = Padded({.multiple = 48});
  EXPECT_THAT(MakeDecoders({}, &config),
              RefusesField("parameters[\"pad.ids\"].multiple",
                           HasSubstr("48 (expected a multiple of 1 that divides 64")));
}

TEST(MakeDecodersTest, PadsToAnyMultipleIfThereIsNoLargestSize) {
  ModelConfig config = Padded({.multiple = 48});
  config.inputs[0].variable_dims = {{.dim = 0, .symbol = "length"}};
  EXPECT_THAT(MakeDecoders({}, &config), IsOk());
}

TEST(MakeDecodersTest, RejectsMasksThatCannotBePadded) {
  for (const char* mask : {"ids", "none"}) {
    ModelConfig config = Padded({.mask = mask});
    EXPECT_THAT(MakeDecoders({}, &config),
                RefusesField("parameters[\"pad.ids\"].mask", HasSubstr(mask)));
  }
  ModelConfig config = Padded({.mask = "mask"});
  config.inputs[1].dims = {-1, 2};
  EXPECT_THAT(MakeDecoders({}, &config),
              RefusesField("parameters[\"pad.ids\"]", HasSubstr("BOOL [-1] for 'mask'")));
}

}  // namespace
}  // namespace braid

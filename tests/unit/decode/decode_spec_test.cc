#include "server/decode/decode_spec.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<DecodeSpec> Parse(const std::string& json) {
  return ParseDecodeSpec(json, "decode");
}

absl::StatusOr<DecodeSpec> ParseTransforms(const std::string& transforms) {
  return Parse(absl::StrCat(R"({"image": {"transforms": [)", transforms, "]}}"));
}

TEST(DecodeSpecTest, ReadsImages) {
  const auto spec = Parse(R"({"image": {"channels": 1, "max_pixels": 1000000, "transforms": [
      {"resize": {"size": [256], "interpolation": "bicubic"}},
      {"center_crop": {"size": [224, 200]}},
      {"random_crop": {"size": [200, 199], "padding": 4}},
      {"random_resized_crop": {"size": 64, "scale": [0.5, 1], "ratio": [0.9, 1.1],
                               "interpolation": "nearest"}},
      {"random_horizontal_flip": {}},
      {"random_vertical_flip": {"p": 0.25}},
      {"to_float": {"scale": false}},
      {"normalize": {"mean": [0.5], "std": 0.25}}]}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ImageSpec expected;
  expected.channels = 1;
  expected.max_pixels = 1'000'000;
  expected.transforms = {Resize{{256}, Interpolation::kBicubic},
                         CenterCrop{224, 200},
                         RandomCrop{200, 199, 4},
                         RandomResizedCrop{64, 64, 0.5, 1, 0.9, 1.1, Interpolation::kNearest},
                         RandomHorizontalFlip{0.5},
                         RandomVerticalFlip{0.25},
                         ToFloat{false},
                         Normalize{{0.5}, {0.25}}};
  EXPECT_EQ(std::get<ImageSpec>(*spec), expected);
  EXPECT_TRUE(IsRandom(*spec));
}

TEST(DecodeSpecTest, HasDefaultsOfTorchvision) {
  const auto spec = ParseTransforms(R"({"random_resized_crop": {"size": 224}}, {"to_float": {}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ImageSpec expected;
  expected.channels = 3;
  expected.transforms = {
      RandomResizedCrop{224, 224, 0.08, 1, 3.0 / 4, 4.0 / 3, Interpolation::kBilinear},
      ToFloat{true}};
  EXPECT_EQ(std::get<ImageSpec>(*spec), expected);
}

TEST(DecodeSpecTest, ReadsTexts) {
  const auto spec = Parse(
      R"({"tokenizer": "tokenizer.json", "max_length": 128, "truncate": true,
          "special_tokens": false, "pad_to_max_length": true, "pad_token": 3, "mask": "mask"})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const TextSpec expected = {"tokenizer.json", 128, true, false, true, 3, "mask"};
  EXPECT_EQ(std::get<TextSpec>(*spec), expected);
  EXPECT_FALSE(IsRandom(*spec));
}

TEST(DecodeSpecTest, IsRandomWithARandomTransformOnly) {
  EXPECT_FALSE(IsRandom(*ParseTransforms(R"({"center_crop": {"size": 2}}, {"to_float": {}})")));
  for (const char* const transform :
       {R"({"random_crop": {"size": 2}})", R"({"random_resized_crop": {"size": 2}})",
        R"({"random_horizontal_flip": {}}, {"resize": {"size": [2, 2]}})",
        R"({"random_vertical_flip": {}}, {"resize": {"size": [2, 2]}})"}) {
    EXPECT_TRUE(IsRandom(*ParseTransforms(transform))) << transform;
  }
}

TEST(DecodeSpecTest, NamesUnknownFieldsAndTheKnownOnes) {
  EXPECT_THAT(Parse(R"({"image": {"chanels": 3, "transform": []}})"),
              RefusesField("decode.image",
                           "decode.image: unknown fields 'chanels', 'transform' (expected: "
                           "channels, transforms, max_pixels)"));
  EXPECT_THAT(ParseTransforms(R"({"center_crop": {"size": 2, "fill": 0}})"),
              RefusesField("decode.image.transforms[0].center_crop",
                           AllOf(HasSubstr("unknown fields 'fill' (expected: size)"))));
  EXPECT_THAT(ParseTransforms(R"({"to_float": {}}, {"color_jitter": {}})"),
              RefusesField("decode.image.transforms[1]",
                           AllOf(HasSubstr("unknown transform 'color_jitter'"),
                                 HasSubstr("random_horizontal_flip"))));
  EXPECT_THAT(Parse(R"({"tokenizer": "t.json", "length": 1})"),
              RefusesField("decode", HasSubstr("unknown fields 'length' (expected: tokenizer, ")));
  EXPECT_THAT(Parse(R"({"image": {}, "tokenizer": "t.json"})"),
              RefusesField("decode", HasSubstr("has other fields next to \"image\"")));
}

TEST(DecodeSpecTest, RejectsOtherJson) {
  for (const char* const json : {"", "{", "[]", "{}", "3", R"({"audio": {}})"}) {
    EXPECT_THAT(Parse(json), RefusesField("decode", HasSubstr(""))) << json;
  }
}

TEST(DecodeSpecTest, RejectsInvalidFieldsOfImages) {
  struct Case {
    const char* transforms;
    const char* field;
    const char* message;
  };
  for (const Case& test : std::vector<Case>{
           {R"({"resize": {}})", "[0].resize.size", "is required"},
           {R"({"resize": {"size": []}})", "[0].resize.size", "0 numbers (expected 1 or 2)"},
           {R"({"resize": {"size": [1, 2, 3]}})", "[0].resize.size", "3 numbers"},
           {R"({"resize": {"size": [0, 2]}})", "[0].resize.size", "0 (expected 1 to 65535 pixels)"},
           {R"({"resize": {"size": 2.5}})", "[0].resize.size", "expected a 64-bit integer"},
           {R"({"resize": {"size": ["2"]}})", "[0].resize.size[0]", "expected a 64-bit integer"},
           {R"({"resize": {"size": 18446744073709551615}})", "[0].resize.size",
            "expected a 64-bit integer"},
           {R"({"resize": {"size": [65535, 65535]}})", "[0].resize.size",
            "makes images of 65535 x 65535 pixels (max_pixels is 100000000)"},
           {R"({"center_crop": {"size": [9459, 9460]}})", "[0].center_crop.size",
            "which the resizes and crops make 268446420 bytes per row (expected at most 268435456"},
           {R"({"to_float": {}}, {"resize": {"size": [4000, 4001]}}, {"resize": {"size": 4002}})",
            "[2].resize.size", "bytes per row (expected at most 268435456)"},
           {R"({"center_crop": {"size": 5000}}, {"to_float": {}})", "",
            "make rows of 300000000 bytes (expected at most 268435456)"},
           {R"({"resize": {"size": 2, "interpolation": "lanczos"}})", "[0].resize.interpolation",
            R"(expected "bilinear", "nearest" or "bicubic")"},
           {R"({"center_crop": {"size": [1, 2, 3]}})", "[0].center_crop.size", "3 numbers"},
           {R"({"center_crop": {"size": -1}})", "[0].center_crop.size", "-1 (expected 1"},
           {R"({"random_crop": {"size": 2, "padding": -1}})", "[0].random_crop.padding", "-1"},
           {R"({"center_crop": {"size": 8}}, {"random_crop": {"size": 11, "padding": 1}})",
            "[1].random_crop.size", "11 x 11 pixels is larger than the images of 8 x 8 pixels"},
           {R"({"random_resized_crop": {"size": 2, "scale": [0.5]}})",
            "[0].random_resized_crop.scale", "1 numbers (expected 2)"},
           {R"({"random_resized_crop": {"size": 2, "scale": [1, 0.5]}})",
            "[0].random_resized_crop.scale", "[1, 0.5]"},
           {R"({"random_resized_crop": {"size": 2, "ratio": [0, 1]}})",
            "[0].random_resized_crop.ratio", "[0, 1]"},
           {R"({"random_horizontal_flip": {"p": 1.5}})", "[0].random_horizontal_flip.p",
            "1.5 (expected 0 to 1)"},
           {R"({"random_vertical_flip": {"p": true}})", "[0].random_vertical_flip.p",
            "expected a number"},
           {R"({"to_float": {"scale": 1}})", "[0].to_float.scale", "expected true or false"},
           {R"({"to_float": []})", "[0].to_float", "expected an object"},
           {R"({"normalize": {"mean": 0, "std": 1}})", "[0].normalize", "add to_float before it"},
           {R"({"to_float": {}}, {"normalize": {"mean": [0, 0], "std": 1}})", "[1].normalize.mean",
            "2 numbers (expected 1 or 3, one per channel)"},
           {R"({"to_float": {}}, {"normalize": {"mean": 0, "std": [1, 0, 1]}})",
            "[1].normalize.std", "0 (expected a finite FP32 number other than 0)"},
           {R"({"to_float": {}}, {"normalize": {"mean": 1e300, "std": 1}})", "[1].normalize.mean",
            "1e+300 (expected a finite FP32 number)"},
           {R"({"to_float": {}, "resize": {"size": 1}})", "[0]", "object with one transform"},
           {R"("to_float")", "[0]", "object with one transform"},
           {R"({"to_float": {}})", "", "images of different sizes"},
           {R"({"resize": {"size": [256]}})", "", "add a center_crop"},
       }) {
    EXPECT_THAT(
        ParseTransforms(test.transforms),
        RefusesField(absl::StrCat("decode.image.transforms", test.field), HasSubstr(test.message)))
        << test.transforms;
  }
  EXPECT_THAT(Parse(R"({"image": {"channels": 4}})"),
              RefusesField("decode.image.channels", HasSubstr("4 (expected 1 for gray or 3")));
  EXPECT_THAT(Parse(R"({"image": {"max_pixels": 0}})"),
              RefusesField("decode.image.max_pixels", HasSubstr("0 (expected 1 to")));
  EXPECT_THAT(
      Parse(R"({"image": {"max_pixels": 1000000001}})"),
      RefusesField("decode.image.max_pixels", HasSubstr("1000000001 (expected 1 to 1000000000)")));
  std::string many = R"({"center_crop": {"size": 2}})";
  for (int i = 0; i < 16; ++i) {
    many += R"(, {"random_horizontal_flip": {}})";
  }
  EXPECT_THAT(
      ParseTransforms(many),
      RefusesField("decode.image.transforms", HasSubstr("17 transforms (expected at most 16)")));
  EXPECT_THAT(Parse(R"({"image": {"transforms": {}}})"),
              RefusesField("decode.image.transforms", HasSubstr("expected a list")));
}

TEST(DecodeSpecTest, TakesASingleSizeWhereImagesAreAlike) {
  EXPECT_TRUE(ParseTransforms(R"({"resize": {"size": [90, 60]}}, {"resize": {"size": 30}})").ok());
}

TEST(DecodeSpecTest, RejectsInvalidFieldsOfTexts) {
  struct Case {
    const char* json;
    const char* field;
  };
  for (const Case& test : std::vector<Case>{
           {R"({"tokenizer": ""})", "decode.tokenizer"},
           {R"({"tokenizer": 3})", "decode.tokenizer"},
           {R"({"tokenizer": "t", "max_length": -1})", "decode.max_length"},
           {R"({"tokenizer": "t", "max_length": 1048577})", "decode.max_length"},
           {R"({"tokenizer": "t", "truncate": true})", "decode.truncate"},
           {R"({"tokenizer": "t", "pad_to_max_length": true})", "decode.pad_to_max_length"},
           {R"({"tokenizer": "t", "pad_token": -2})", "decode.pad_token"},
           {R"({"tokenizer": "t", "mask": null})", "decode.mask"},
       }) {
    EXPECT_THAT(Parse(test.json), RefusesField(test.field, HasSubstr(""))) << test.json;
  }
}

}  // namespace
}  // namespace braid

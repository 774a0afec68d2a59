#include "server/decode/decode_spec.h"

#include <string>
#include <utility>
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
  EXPECT_EQ(RandomTransform(*spec), "random_crop");
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

// Braid's Python client accepts the same forms in the specification of a job.
TEST(DecodeSpecTest, ReadsShortFormsOfTransforms) {
  const auto spec = ParseTransforms(R"(
      {"resize": [40, 50]}, {"center_crop": 32}, {"random_crop": [30, 31]},
      {"random_resized_crop": 24}, "random_horizontal_flip", {"random_vertical_flip": 0.25},
      {"to_float": null}, {"to_float": false}, "to_float")");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::vector<ImageTransform> expected = {Resize{{40, 50}},
                                                CenterCrop{32, 32},
                                                RandomCrop{30, 31},
                                                RandomResizedCrop{24, 24},
                                                RandomHorizontalFlip{0.5},
                                                RandomVerticalFlip{0.25},
                                                ToFloat{true},
                                                ToFloat{false},
                                                ToFloat{true}};
  EXPECT_EQ(std::get<ImageSpec>(*spec).transforms, expected);
}

TEST(DecodeSpecTest, ReadsNullAsAnAbsentField) {
  EXPECT_EQ(*Parse(R"({"tokenizer": "t", "max_length": null, "mask": null})"),
            *Parse(R"({"tokenizer": "t"})"));
  EXPECT_EQ(*ParseTransforms(R"({"center_crop": {"size": 2}}, {"to_float": {"scale": null}})"),
            *ParseTransforms(R"({"center_crop": 2}, "to_float")"));
}

TEST(DecodeSpecTest, ReadsTexts) {
  const auto spec = Parse(
      R"({"tokenizer": "tokenizer.json", "max_length": 128, "truncate": true,
          "special_tokens": false, "pad_to_max_length": true, "pad_token": 3, "mask": "mask"})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const TextSpec expected = {"tokenizer.json", 128, true, false, true, 3, "mask"};
  EXPECT_EQ(std::get<TextSpec>(*spec), expected);
  EXPECT_EQ(RandomTransform(*spec), "");
}

TEST(DecodeSpecTest, NamesTheFirstRandomTransform) {
  EXPECT_EQ(RandomTransform(*ParseTransforms(R"({"center_crop": 2}, "to_float")")), "");
  for (const auto& [transforms, name] :
       {std::pair{R"({"random_crop": 2}, "random_horizontal_flip")", "random_crop"},
        {R"({"random_resized_crop": 2})", "random_resized_crop"},
        {R"("random_horizontal_flip", {"resize": [2, 2]})", "random_horizontal_flip"},
        {R"({"resize": [2, 2]}, "random_vertical_flip")", "random_vertical_flip"}}) {
    EXPECT_EQ(RandomTransform(*ParseTransforms(transforms)), name);
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
              RefusesField("decode", HasSubstr("'tokenizer' next to image (expected only image)")));
}

TEST(DecodeSpecTest, RejectsOtherJson) {
  struct Case {
    const char* json;
    const char* message;
  };
  for (const Case& test : std::vector<Case>{
           {"", "'' (expected JSON)"},
           {"{", "'{' (expected JSON)"},
           {"[]", R"([] (expected an object with "image" or "tokenizer"))"},
           {"{}", "{} (expected an object with "},
           {"3", "3 (expected an object"},
           {R"({"audio": {}})", "'audio' (expected an object"},
       }) {
    EXPECT_THAT(Parse(test.json), RefusesField("decode", HasSubstr(test.message))) << test.json;
  }
}

TEST(DecodeSpecTest, RejectsDeeplyNestedValues) {
  constexpr size_t kDepth = 200'000;
  const std::string nested = std::string(kDepth, '[') + std::string(kDepth, ']');
  EXPECT_THAT(ParseTransforms(absl::StrCat(R"({"resize": )", nested, "}")),
              RefusesField("decode.image.transforms[0].resize", HasSubstr("a nested list")));
  EXPECT_THAT(Parse(absl::StrCat(R"({"tokenizer": )", nested, "}")),
              RefusesField("decode.tokenizer", HasSubstr("a nested list (expected a string)")));
}

TEST(DecodeSpecTest, RejectsInvalidFieldsOfImages) {
  struct Case {
    const char* transforms;
    const char* field;
    const char* message;
  };
  for (const Case& test : std::vector<Case>{
           {R"({"resize": {}})", "[0].resize.size", "missing (expected a value)"},
           {R"({"resize": {"size": []}})", "[0].resize.size",
            "[] (expected an integer, or height and width)"},
           {R"({"resize": {"size": [1, 2, 3]}})", "[0].resize.size",
            "[1, 2, 3] (expected an integer, or height and width)"},
           {R"({"resize": {"size": [0, 2]}})", "[0].resize.size", "0 (expected 1 to 65535 pixels)"},
           {R"({"resize": {"size": 2.5}})", "[0].resize.size", "2.5 (expected a 64-bit integer)"},
           {R"({"resize": {"size": ["2"]}})", "[0].resize.size[0]",
            R"("2" (expected a 64-bit integer))"},
           {R"({"resize": {"size": 18446744073709551615}})", "[0].resize.size",
            "18446744073709551615 (expected a 64-bit integer)"},
           {R"({"resize": {"size": [65535, 65535]}})", "[0].resize.size",
            "makes images of 65535 x 65535 pixels (expected at most max_pixels, 100000000)"},
           {R"({"center_crop": {"size": [9459, 9460]}})", "[0].center_crop.size",
            "cropped images of a row take 268446420 bytes in total (expected at most 268435456"},
           {R"({"to_float": {}}, {"resize": {"size": [4000, 4001]}}, {"resize": {"size": 4002}})",
            "[2].resize.size", "bytes in total (expected at most 268435456)"},
           {R"({"center_crop": {"size": 5000}}, {"to_float": {}})", "",
            "make rows of 300000000 bytes (expected at most 268435456)"},
           {R"({"resize": {"size": 2, "interpolation": "lanczos"}})", "[0].resize.interpolation",
            R"("lanczos" (expected "bilinear", "nearest" or "bicubic"))"},
           {R"({"center_crop": {"size": [1, 2, 3]}})", "[0].center_crop.size",
            "[1, 2, 3] (expected an integer, or height and width)"},
           {R"({"center_crop": {"size": -1}})", "[0].center_crop.size", "-1 (expected 1"},
           {R"({"random_crop": {"size": 2, "padding": -1}})", "[0].random_crop.padding", "-1"},
           {R"({"center_crop": {"size": 8}}, {"random_crop": {"size": 11, "padding": 1}})",
            "[1].random_crop.size",
            "11 x 11 pixels (expected at most 10 x 10, the size of the images with their padding)"},
           {R"({"random_resized_crop": {"size": 2, "scale": [0.5]}})",
            "[0].random_resized_crop.scale", "[0.5] (expected two numbers, the lower one first)"},
           {R"({"random_resized_crop": {"size": 2, "scale": [1, 0.5]}})",
            "[0].random_resized_crop.scale", "[1, 0.5]"},
           {R"({"random_resized_crop": {"size": 2, "ratio": [0, 1]}})",
            "[0].random_resized_crop.ratio", "[0, 1]"},
           {R"({"random_horizontal_flip": {"p": 1.5}})", "[0].random_horizontal_flip.p",
            "1.5 (expected 0 to 1)"},
           {R"({"random_vertical_flip": {"p": true}})", "[0].random_vertical_flip.p",
            "true (expected a number)"},
           {R"({"to_float": {"scale": 1}})", "[0].to_float.scale", "1 (expected true or false)"},
           {R"({"to_float": []})", "[0].to_float.scale", "[] (expected true or false)"},
           {R"({"to_float": [{}]})", "[0].to_float", "a nested list (expected an object"},
           {R"({"normalize": {"mean": 0, "std": 1}})", "[0].normalize", "add to_float before it"},
           {R"({"to_float": {}}, {"normalize": {"mean": [0, 0], "std": 1}})", "[1].normalize.mean",
            "[0, 0] (expected 1 number, or 3, one per channel)"},
           {R"({"to_float": {}}, {"normalize": {"mean": 0, "std": [1, 0, 1]}})",
            "[1].normalize.std", "0 (expected a finite FP32 number other than 0)"},
           {R"({"to_float": {}}, {"normalize": {"mean": 1e300, "std": 1}})", "[1].normalize.mean",
            "1e+300 (expected a finite FP32 number)"},
           {R"({"to_float": {}, "resize": {"size": 1}})", "[0]",
            "'resize', 'to_float' (expected one transform, such as"},
           {"3", "[0]", "3 (expected one transform"},
           {R"("tofloat")", "[0]", "unknown transform 'tofloat' (expected one of resize, "},
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
  EXPECT_THAT(
      Parse(R"({"image": {"transforms": {}}})"),
      RefusesField("decode.image.transforms", HasSubstr("{} (expected a list of transforms)")));
}

TEST(DecodeSpecTest, TakesASingleSizeWhereImagesAreAlike) {
  EXPECT_TRUE(ParseTransforms(R"({"resize": {"size": [90, 60]}}, {"resize": {"size": 30}})").ok());
}

TEST(DecodeSpecTest, RejectsInvalidFieldsOfTexts) {
  struct Case {
    const char* json;
    const char* field;
    const char* message;
  };
  for (const Case& test : std::vector<Case>{
           {R"({"tokenizer": ""})", "tokenizer", "'' (expected the path of a tokenizer.json)"},
           {R"({"tokenizer": 3})", "tokenizer", "3 (expected a string)"},
           {R"({"tokenizer": null})", "tokenizer", "missing"},
           {R"({"tokenizer": "t", "max_length": -1})", "max_length", "-1 (expected 0 to 1048576"},
           {R"({"tokenizer": "t", "max_length": 1048577})", "max_length", "1048577 (expected 0 to"},
           {R"({"tokenizer": "t", "max_length": "8"})", "max_length", R"("8" (expected a 64-bit)"},
           {R"({"tokenizer": "t", "truncate": true})", "truncate",
            "true without max_length (expected a max_length of at least 1)"},
           {R"({"tokenizer": "t", "truncate": 1})", "truncate", "1 (expected true or false)"},
           {R"({"tokenizer": "t", "special_tokens": "no"})", "special_tokens",
            R"("no" (expected true or false))"},
           {R"({"tokenizer": "t", "pad_to_max_length": true})", "pad_to_max_length",
            "true without max_length (expected a max_length of at least 1)"},
           {R"({"tokenizer": "t", "pad_token": -2})", "pad_token", "-2 (expected a token, or -1)"},
           {R"({"tokenizer": "t", "mask": ["m"]})", "mask", R"(["m"] (expected a string))"},
       }) {
    EXPECT_THAT(Parse(test.json),
                RefusesField(absl::StrCat("decode.", test.field), HasSubstr(test.message)))
        << test.json;
  }
}

}  // namespace
}  // namespace braid

#include "server/models/config_reader.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

constexpr char kTensors[] = R"(
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 5 ] } ]
)";

absl::StatusOr<ModelConfig> Parse(const std::string& text) { return ParseConfig(text, "m"); }
// A configuration that is right, but for `text`.
absl::StatusOr<ModelConfig> ParseWith(const std::string& text) {
  return Parse(absl::StrCat(text, "\n", kTensors));
}

TEST(ParseConfigTest, ReadsEveryField) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(R"(
name: "m"  # as in Triton
platform: "pytorch_libtorch"
backend: "pytorch"
default_model_filename: "model.pt"
max_batch_size: 64
dynamic_batching { max_queue_delay_microseconds: 1500 }
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "scale" data_type: TYPE_BF16 dims: [ ] }
]
output { name: "y" data_type: TYPE_BOOL dims: 2 dims: 3 }
)"));
  EXPECT_EQ(config.name, "m");
  EXPECT_EQ(config.max_batch_size, 64);
  EXPECT_EQ(config.max_queue_delay, absl::Microseconds(1500));
  ASSERT_EQ(config.inputs.size(), 2);
  EXPECT_EQ(config.inputs[0].name, "ids");
  EXPECT_EQ(config.inputs[0].type, DataType::kInt64);
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(-1));
  EXPECT_EQ(config.inputs[1].type, DataType::kBf16);
  EXPECT_THAT(config.inputs[1].dims, IsEmpty());
  ASSERT_EQ(config.outputs.size(), 1);
  EXPECT_EQ(config.outputs[0].type, DataType::kBool);
  EXPECT_THAT(config.outputs[0].dims, ElementsAre(2, 3));
}

TEST(ParseConfigTest, LeftOutMeansNotBatchedAndNoDelay) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(kTensors));
  EXPECT_EQ(config.name, "m");
  EXPECT_FALSE(config.batched());
  EXPECT_EQ(config.max_queue_delay, absl::ZeroDuration());
}

TEST(ParseConfigTest, SettingsThatAreNotImplementedAreRefusedByName) {
  for (const auto& [text, name] : {
           std::pair{"instance_group [ { count: 2 } ]", "instance_group"},
           {"version_policy { latest { num_versions: 2 } }", "version_policy"},
           {"sequence_batching { }", "sequence_batching"},
           {"parameters { key: \"k\" value { string_value: \"v\" } }", "parameters[\"k\"]"},
           {"dynamic_batching { preferred_batch_size: 8 }",
            "dynamic_batching.preferred_batch_size"},
           {"input { name: \"z\" data_type: TYPE_FP32 dims: 1 optional: true }",
            "input[0].optional"},
       }) {
    EXPECT_THAT(ParseWith(text),
                StatusIs(absl::StatusCode::kUnimplemented,
                         HasSubstr(absl::StrCat("config.pbtxt: ", name, " is not implemented"))))
        << text;
  }
}

TEST(ParseConfigTest, TextThatIsWrongSaysWhere) {
  EXPECT_THAT(ParseWith("max_batch_size: 8\nmax_batch_sise: 8"),
              StatusIs(kInvalid, AllOf(HasSubstr("line 2"), HasSubstr("max_batch_sise"))));
  EXPECT_THAT(Parse("input [ {"), StatusIs(kInvalid, HasSubstr("line 1")));
  EXPECT_THAT(ParseWith("max_batch_size: \"many\""), StatusIs(kInvalid, HasSubstr("line 1")));
}

TEST(ParseConfigTest, ValuesThatMakeNoSenseNameTheirField) {
  for (const auto& [text, message] : {
           std::pair{"name: \"other\"", "name: 'other'; expected the folder's name, 'm'"},
           {"platform: \"onnxruntime_onnx\"", "platform: 'onnxruntime_onnx'; expected"},
           {"backend: \"python\"", "backend: 'python'; expected 'pytorch'"},
           {"default_model_filename: \"m.pt\"", "default_model_filename: 'm.pt'; expected"},
           {"max_batch_size: -1", "max_batch_size: -1; expected 0 (not batched) or more"},
           {"dynamic_batching { max_queue_delay_microseconds: 60000001 }",
            "dynamic_batching.max_queue_delay_microseconds: 60000001; expected at most 60000000"},
           {"input { data_type: TYPE_FP32 dims: 1 }", "input[0].name: is empty"},
           {"input { name: \"x\" data_type: TYPE_FP32 dims: 1 }", "input[1].name: 'x' is there"},
           {"input { name: \"z\" dims: 1 }", "input[0].data_type: TYPE_INVALID is no tensor type"},
           {"output { name: \"z\" data_type: TYPE_STRING dims: 1 }",
            "output[0].data_type: TYPE_STRING is no tensor type"},
           {"output { name: \"z\" data_type: TYPE_FP32 dims: 0 }", "output[0].dims: 0 is no size"},
           {"output { name: \"z\" data_type: TYPE_FP32 dims: -2 }",
            "output[0].dims: -2 is no size"},
       }) {
    EXPECT_THAT(ParseWith(text),
                StatusIs(kInvalid, HasSubstr(absl::StrCat("config.pbtxt: ", message))))
        << text;
  }
}

TEST(ParseConfigTest, BroadcastInputsAreNamedInAParameter) {
  const auto with = [](const std::string& names) {
    return ParseWith(absl::StrCat(
        "max_batch_size: 8\n", "input { name: \"mask\" data_type: TYPE_BOOL dims: 3 }\n",
        "parameters { key: \"broadcast\" value { string_value: \"", names, "\" } }"));
  };
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, with("mask"));
  EXPECT_TRUE(config.inputs[0].broadcast);
  EXPECT_FALSE(config.inputs[1].broadcast);
  EXPECT_THAT(with("other"), StatusIs(kInvalid, AllOf(HasSubstr("parameters[\"broadcast\"]"),
                                                      HasSubstr("'other' is no input"))));
}

TEST(ParseConfigTest, InputsAndOutputsAreRequired) {
  EXPECT_THAT(Parse(""), StatusIs(kInvalid, HasSubstr("input: is empty")));
  EXPECT_THAT(Parse("input { name: \"x\" data_type: TYPE_FP32 dims: 1 }"),
              StatusIs(kInvalid, HasSubstr("output: is empty")));
}

TEST(ReadConfigFileTest, ReadsTheFile) {
  const TempDir dir;
  dir.Write("config.pbtxt", kTensors);
  EXPECT_THAT(ReadConfigFile(dir.path() / "config.pbtxt", "m"), IsOk());
  EXPECT_THAT(ReadConfigFile(dir.path() / "missing", "m"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

TEST(ReadConfigFileTest, AnEmptyFileIsReadToo) {
  const TempDir dir;
  dir.Write("config.pbtxt", "");
  EXPECT_THAT(ReadConfigFile(dir.path() / "config.pbtxt", "m"),
              StatusIs(kInvalid, HasSubstr("input: is empty")));
}

}  // namespace
}  // namespace braid

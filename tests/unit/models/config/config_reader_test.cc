#include "server/models/config/config_reader.h"

#include <filesystem>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/silent_pipe.h"
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
// Parses a configuration that is valid except for `text`.
absl::StatusOr<ModelConfig> ParseWith(const std::string& text) {
  return Parse(absl::StrCat(text, "\n", kTensors));
}

TEST(ParseConfigTest, IgnoresByteOrderMark) {
  EXPECT_THAT(Parse(absl::StrCat("\xEF\xBB\xBF", kTensors)), IsOk());
  EXPECT_THAT(Parse(absl::StrCat("\xEF\xBB\xBF\xEF\xBB\xBF", kTensors)),
              StatusIs(kInvalid, HasSubstr("line 1")));
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

TEST(ParseConfigTest, DefaultsToUnbatchedWithoutDelay) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(kTensors));
  EXPECT_EQ(config.name, "m");
  EXPECT_FALSE(config.batched());
  EXPECT_EQ(config.max_queue_delay, absl::ZeroDuration());
}

TEST(ParseConfigTest, ReadsDynamicBatching) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseWith(R"(
max_batch_size: 64
dynamic_batching {
  preferred_batch_size: [ 32, 8, 8 ]
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 max_queue_size: 7 }
  priority_queue_policy {
    key: 3
    value { allow_timeout_override: true }
  }
})"));
  EXPECT_THAT(config.preferred_batch_sizes, ElementsAre(8, 32));
  EXPECT_EQ(config.priority_levels, 3);
  EXPECT_EQ(config.default_priority_level, 2);
  EXPECT_EQ(config.default_queue_policy.timeout_action, QueuePolicy::TimeoutAction::kDelay);
  EXPECT_EQ(config.default_queue_policy.default_timeout, absl::Microseconds(5));
  EXPECT_EQ(config.default_queue_policy.max_queue_size, 7);
  EXPECT_FALSE(config.default_queue_policy.allow_timeout_override);
  EXPECT_TRUE(config.priority_queue_policies.at(3).allow_timeout_override);
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig ordered,
                             ParseWith("dynamic_batching { preserve_ordering: true }"));
  EXPECT_TRUE(ordered.preserve_ordering);
}

TEST(ParseConfigTest, ReadsVersionPolicyAndInstanceGroups) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseWith(R"(
version_policy { specific { versions: [ 2, 5 ] } }
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { kind: KIND_CPU } ])"));
  EXPECT_THAT(std::get<SpecificVersions>(config.version_policy).versions, ElementsAre(2, 5));
  ASSERT_EQ(config.instance_groups.size(), 2);
  EXPECT_EQ(config.instance_groups[0].kind, InstanceGroup::Kind::kGpu);
  EXPECT_EQ(config.instance_groups[0].count, 2);
  EXPECT_THAT(config.instance_groups[0].gpus, ElementsAre(0, 1));
  EXPECT_EQ(config.instance_groups[1].kind, InstanceGroup::Kind::kCpu);
  EXPECT_EQ(config.instance_groups[1].count, 1);
  EXPECT_EQ(std::get<LatestVersions>(
                ParseWith("version_policy { latest { num_versions: 3 } }")->version_policy)
                .count,
            3);
  EXPECT_TRUE(
      std::holds_alternative<AllVersions>(ParseWith("version_policy { all { } }")->version_policy));
}

TEST(ParseConfigTest, ReadsReshapes) {
  const auto with = [](const std::string& dims, const std::string& shape, int batch = 8) {
    return Parse(absl::StrCat("max_batch_size: ", batch,
                              " input { name: \"x\" data_type: TYPE_FP32 dims: [", dims,
                              "] reshape { shape: [", shape,
                              "] } } output { name: \"y\" data_type: TYPE_FP32 dims: 1 }"));
  };
  EXPECT_THAT(*with("6", "2, 3")->inputs[0].reshape, ElementsAre(2, 3));
  EXPECT_THAT(*with("1", "")->inputs[0].reshape, IsEmpty());
  EXPECT_THAT(with("-1, 4", "-1, 2, 2"), IsOk());
  EXPECT_THAT(with("2, -1, 4", "-1, 8"), StatusIs(kInvalid, HasSubstr("input[0].reshape.shape")));
  EXPECT_THAT(with("6", "2, 2"), StatusIs(kInvalid, HasSubstr("input[0].reshape.shape")));
  EXPECT_THAT(with("1", "", 0), StatusIs(kInvalid, HasSubstr("not batched")));
  EXPECT_THAT(with("9223372036854775807, 3", "1"), StatusIs(kInvalid, HasSubstr("input[0].dims")));
}

TEST(ParseConfigTest, ReadsWarmups) {
  const auto with = [](const std::string& text) {
    return ParseWith(absl::StrCat("max_batch_size: 4 model_warmup { name: \"w\" ", text, " }"));
  };
  const std::string input = "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 3 ";
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, with("batch_size: 2 count: 5 " + input +
                                                            "input_data_file: \"x.bin\" } }"));
  ASSERT_EQ(config.warmups.size(), 1);
  EXPECT_EQ(config.warmups[0].batch_size, 2);
  EXPECT_EQ(config.warmups[0].count, 5);
  EXPECT_EQ(config.warmups[0].inputs.at("x").fill, Warmup::Fill::kFile);
  EXPECT_EQ(config.warmups[0].inputs.at("x").file, "x.bin");
  for (const auto& [text, field] : {
           std::pair{"batch_size: 5 " + input + "zero_data: true } }",
                     "model_warmup[0].batch_size"},
           {"batch_size: 1 " + input + "} }", "model_warmup[0].inputs[\"x\"]"},
           {"batch_size: 1", "model_warmup[0].inputs: input 'x' is missing"},
           {"batch_size: 1 " + input + "input_data_file: \"../x\" } }", "input_data_file: '../x'"},
           {"batch_size: 1 inputs { key: \"z\" }", "model_warmup[0].inputs[\"z\"]"},
           {"batch_size: 1 inputs { key: \"x\" value { data_type: TYPE_INT8 } }", "data_type"},
           {"batch_size: 1 inputs { key: \"x\" value { data_type: TYPE_FP32 zero_data: true "
            "dims: [ 4611686018427387904, 4611686018427387904 ] } }",
            "dims"},
       }) {
    EXPECT_THAT(with(text), StatusIs(kInvalid, HasSubstr(field))) << text;
  }
  // Triton also skips requests without rows.
  EXPECT_THAT(with(input + "zero_data: true } }")->warmups, IsEmpty());
}

TEST(ParseConfigTest, ReadsWarmupsOfUnbatchedModel) {
  for (const auto& [batch_size, good] : {std::pair{0, true}, {1, true}, {2, false}}) {
    const auto config = ParseWith(absl::StrCat(
        "model_warmup { batch_size: ", batch_size,
        " inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }"));
    EXPECT_EQ(config.ok(), good) << config.status();
  }
}

TEST(ParseConfigTest, ReadsBatchDims) {
  const auto with = [](const std::string& settings, const std::string& value,
                       const std::string& name = "x") {
    return Parse(absl::StrCat(
        "input { name: \"x\" data_type: TYPE_FP32 dims: [-1, -1, 3] } output { name: \"y\" "
        "data_type: TYPE_FP32 dims: -1 } parameters { key: \"batch_dim.",
        name, "\" value { string_value: \"", value, "\" } } ", settings));
  };
  EXPECT_EQ(with("max_batch_size: 8", "1")->inputs[0].batch_dim, 1);
  EXPECT_EQ(with("max_batch_size: 8", "3")->inputs[0].batch_dim, 3);
  EXPECT_EQ(with("max_batch_size: 8", "1", "y")->outputs[0].batch_dim, 1);
  EXPECT_THAT(with("max_batch_size: 8", "0", "y"), IsOk());
  const std::string dependent =
      "parameters { key: \"row_independence\" value { string_value: \"dependent\" } }";
  EXPECT_THAT(with(dependent, "1")->inputs[0].dims, ElementsAre(-1, 3));
  const std::string broadcast =
      "max_batch_size: 8 input { name: \"w\" data_type: TYPE_FP32 dims: 3 } "
      "parameters { key: \"broadcast\" value { string_value: \"x\" } }";
  const std::string field = "parameters[\"batch_dim.x\"]";
  EXPECT_THAT(with("max_batch_size: 8", "4"), StatusIs(kInvalid, HasSubstr(field + ": '4'")));
  EXPECT_THAT(with("max_batch_size: 8", "-1"), StatusIs(kInvalid, HasSubstr(field + ": '-1'")));
  EXPECT_THAT(with("max_batch_size: 8", "time"), StatusIs(kInvalid, HasSubstr("'time'")));
  EXPECT_THAT(with("max_batch_size: 8", "1", "z"), StatusIs(kInvalid, HasSubstr("tensor 'z'")));
  EXPECT_THAT(with("", "1"), StatusIs(kInvalid, HasSubstr(field + ": the model has no batch")));
  EXPECT_THAT(with(dependent, "2"), StatusIs(kInvalid, HasSubstr("has no batch dimension")));
  EXPECT_THAT(with(broadcast, "1"), StatusIs(kInvalid, HasSubstr("is broadcast")));
}

TEST(ParseConfigTest, ReadsParameters) {
  const auto with = [](const std::string& key, const std::string& value) {
    return ParseWith(
        absl::StrCat("max_batch_size: 8 ", "input { name: \"ids\" data_type: TYPE_INT32 dims: 3 } ",
                     "parameters { key: \"", key, "\" value { string_value: \"", value, "\" } }"));
  };
  EXPECT_EQ(with("weight", "2.5")->weight, 2.5);
  // Reported by ModelConfig, so clients may send it back.
  EXPECT_EQ(with("scalar.power", "INT64, default 1")->scalars.at("power"), "INT64, default 1");
  EXPECT_THAT(with("origin.trainer", "t"), IsOk());
  EXPECT_EQ(with("preferred_chunk_rows", "4")->preferred_chunk_rows, 4);
  EXPECT_EQ(with("range.ids", "0,999")->inputs[0].range->max, 999);
  EXPECT_THAT(with("INFERENCE_MODE", "true"), IsOk());
  EXPECT_THAT(with("DISABLE_OPTIMIZED_EXECUTION", "False"), IsOk());
  for (const auto& [key, value] : {std::pair{"weight", "0"},
                                   {"weight", "nan"},
                                   {"weight", "1e9"},
                                   {"weight", "-1"},
                                   {"preferred_chunk_rows", "9"},
                                   {"preferred_chunk_rows", "x"},
                                   {"range.ids", "5,4"},
                                   {"range.ids", "5"},
                                   {"range.ids", "0,4294967296"},
                                   {"range.x", "0,1"},
                                   {"range.z", "0,1"},
                                   {"INFERENCE_MODE", "maybe"}}) {
    EXPECT_THAT(with(key, value),
                StatusIs(kInvalid, HasSubstr(absl::StrCat("parameters[\"", key, "\"]: "))));
  }
  for (const auto& [key, value] : {std::pair{"DISABLE_CUDNN", "true"},
                                   {"ENABLE_WEIGHT_SHARING", "true"},
                                   {"INTRA_OP_THREAD_COUNT", "1"},
                                   {"anything", ""}}) {
    EXPECT_THAT(with(key, value), StatusIs(absl::StatusCode::kUnimplemented,
                                           HasSubstr(absl::StrCat("parameters[\"", key, "\"]"))));
  }
}

// Parses a configuration with the inputs x (FP32), ids and mask (INT64), and decode.<input>.
absl::StatusOr<ModelConfig> ParseDecode(const std::string& input, const std::string& json) {
  return ParseWith(absl::StrCat(
      "max_batch_size: 8 input { name: \"ids\" data_type: TYPE_INT64 dims: -1 } ",
      "input { name: \"mask\" data_type: TYPE_INT64 dims: -1 } parameters { key: \"decode.", input,
      "\" value { string_value: '", json, "' } }"));
}

TEST(ParseConfigTest, ReadsDecoders) {
  const std::string image =
      R"({"image": {"channels": 1, "transforms": [{"resize": {"size": [4, 4]}}]}})";
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig images, ParseDecode("x", image));
  const TensorSpec& x = images.inputs[2];
  ASSERT_TRUE(x.decode);
  EXPECT_EQ(std::get<ImageSpec>(*x.decode).channels, 1);
  EXPECT_EQ(x.decode_json, image);
  EXPECT_FALSE(images.inputs[0].decode);
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig texts,
                             ParseDecode("ids", R"({"tokenizer": "t.json", "mask": "mask"})"));
  EXPECT_EQ(std::get<TextSpec>(*texts.inputs[0].decode).mask, "mask");
}

TEST(ParseConfigTest, RejectsInvalidDecoders) {
  EXPECT_THAT(ParseDecode("y", "{}"), StatusIs(kInvalid, HasSubstr("unknown input 'y'")));
  EXPECT_THAT(ParseDecode("x", "{"), StatusIs(kInvalid, HasSubstr("parameters[\"decode.x\"]")));
  EXPECT_THAT(
      ParseDecode("x", R"({"image": {"transforms": [{"random_crop": {"size": [4]}}]}})"),
      StatusIs(kInvalid, HasSubstr("random_crop is random (only training jobs can use random")));
  for (const char* mask : {"ids", "none"}) {
    EXPECT_THAT(
        ParseDecode("ids", absl::StrCat(R"({"tokenizer": "t.json", "mask": ")", mask, "\"}")),
        StatusIs(kInvalid, AllOf(HasSubstr("parameters[\"decode.ids\"].mask"), HasSubstr(mask))));
  }
  EXPECT_THAT(ParseDecode("ids", R"({"tokenizer": "t.json", "mask": "x"})"),
              StatusIs(kInvalid, HasSubstr("input 'x' is FP32 (expected INT64)")));
}

// Parses a configuration with inputs of several dims, and pad.<input>.
absl::StatusOr<ModelConfig> ParsePad(const std::string& input, const std::string& json) {
  return ParseWith(
      absl::StrCat("max_batch_size: 8 input { name: \"ids\" data_type: TYPE_INT64 dims: -1 } ",
                   "input { name: \"image\" data_type: TYPE_FP32 dims: [ -1, -1 ] } ",
                   "parameters { key: \"pad.", input, "\" value { string_value: '", json, "' } }"));
}

TEST(ParseConfigTest, ReadsPadding) {
  const std::string json = R"({"value": 3, "mask": "mask", "multiple": 16})";
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParsePad("ids", json));
  EXPECT_EQ(config.inputs[0].pad, (PadSpec{.value = 3, .multiple = 16, .mask = "mask"}));
  EXPECT_EQ(config.inputs[0].pad_json, json);
  EXPECT_FALSE(config.inputs[1].pad);
}

TEST(ParseConfigTest, RejectsInvalidPadding) {
  EXPECT_THAT(ParsePad("y", "{}"), StatusIs(kInvalid, HasSubstr("unknown input 'y'")));
  EXPECT_THAT(ParsePad("ids", "{"), StatusIs(kInvalid, HasSubstr("parameters[\"pad.ids\"]")));
  EXPECT_THAT(ParsePad("ids", R"({"side": "left"})"), StatusIs(kInvalid, HasSubstr("'side'")));
  for (const char* multiple : {"0", "1048577"}) {
    EXPECT_THAT(ParsePad("ids", absl::StrCat(R"({"multiple": )", multiple, "}")),
                StatusIs(kInvalid, HasSubstr("parameters[\"pad.ids\"].multiple")));
  }
  EXPECT_THAT(ParsePad("image", "{}"),
              StatusIs(kInvalid, HasSubstr("input 'image' has dims [-1, -1] (expected -1 as the")));
}

TEST(ParseConfigTest, RejectsUnsupportedSettingsByName) {
  for (const auto& [text, name] : {
           std::pair{"instance_group { rate_limiter { priority: 1 } }",
                     "instance_group[0].rate_limiter.priority"},
           {"instance_group { kind: KIND_MODEL }", "instance_group[0].kind: KIND_MODEL"},
           {"instance_group { passive: true }", "instance_group[0].passive"},
           {"sequence_batching { }", "sequence_batching"},
           {"ensemble_scheduling { step { model_name: \"n\" } }", "ensemble_scheduling.step"},
           {"parameters { key: \"k\" value { string_value: \"v\" } }", "parameters[\"k\"]"},
           {"input { name: \"z\" data_type: TYPE_FP32 dims: 1 optional: true }",
            "input[0].optional"},
           {"input { name: \"z\" data_type: TYPE_FP32 dims: 1 allow_ragged_batch: true }",
            "input[0].allow_ragged_batch"},
           {"response_cache { enable: true }", "response_cache.enable"},
           {"model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"},
           {"optimization { cuda { graphs: true } }", "optimization.cuda.graphs"},
           {"optimization { graph { level: 1 } }", "optimization.graph.level"},
           {"optimization { input_pinned_memory { enable: false } }",
            "optimization: disabled pinned memory"},
           {"batch_input { }", "batch_input"},
       }) {
    EXPECT_THAT(ParseWith(text), StatusIs(absl::StatusCode::kUnimplemented,
                                          AllOf(HasSubstr(absl::StrCat("config.pbtxt: ", name)),
                                                HasSubstr("is not implemented"))))
        << text;
  }
}

TEST(ParseConfigTest, AcceptsDefaultsOfUnsupportedSettings) {
  for (const char* text : {
           "response_cache { enable: false }",
           "model_transaction_policy { decoupled: false }",
           "optimization { priority: PRIORITY_DEFAULT graph { level: 0 } cuda { graphs: false } "
           "input_pinned_memory { enable: true } }",
           "platform: \"torch_aoti\"",
       }) {
    EXPECT_THAT(ParseWith(text), IsOk()) << text;
  }
  EXPECT_EQ(ParseWith("platform: \"torch_aoti\"")->model_filename, "model.pt2");
  EXPECT_EQ(ParseWith("default_model_filename: \"net.pt\"")->model_filename, "net.pt");
}

TEST(ParseConfigTest, RejectsHostileText) {
  EXPECT_THAT(Parse(std::string(100 << 20, ' ')), StatusIs(kInvalid, HasSubstr("104857600 bytes")));
  std::string junk;
  for (int i = 0; i < 4096; ++i) {
    junk += static_cast<char>(i * 7919 % 256);
  }
  EXPECT_THAT(Parse(junk), StatusIs(kInvalid, HasSubstr("line 1")));
  std::string deep;
  for (int i = 0; i < 10000; ++i) {
    deep += "unknown { ";
  }
  EXPECT_THAT(Parse(deep), StatusIs(kInvalid, HasSubstr("line 1")));
  EXPECT_THAT(Parse("input { name: \"\\377\" data_type: TYPE_FP32 }"),
              StatusIs(kInvalid, HasSubstr("UTF-8")));
  EXPECT_THAT(ParseWith("max_batch_size: 99999999999999999999"),
              StatusIs(kInvalid, HasSubstr("line 1")));
}

TEST(ParseConfigTest, ReportsLineAndColumnOfSyntaxErrors) {
  EXPECT_THAT(ParseWith("max_batch_size: 8\nmax_batch_sise: 8"),
              StatusIs(kInvalid, AllOf(HasSubstr("line 2"), HasSubstr("max_batch_sise"))));
  EXPECT_THAT(Parse("input [ {"), StatusIs(kInvalid, HasSubstr("line 1")));
  EXPECT_THAT(ParseWith("max_batch_size: \"many\""), StatusIs(kInvalid, HasSubstr("line 1")));
}

TEST(ParseConfigTest, RejectsInvalidValuesByField) {
  for (const auto& [text, message] : {
           std::pair{"name: \"other\"", "name: 'other' (expected the folder's name, 'm'"},
           {"platform: \"onnxruntime_onnx\"", "platform: 'onnxruntime_onnx' (expected"},
           {"backend: \"python\"", "backend: 'python' (expected 'pytorch'"},
           {"default_model_filename: \"../m.pt\"", "default_model_filename: '../m.pt' (expected"},
           {"dynamic_batching { preferred_batch_size: 1 }",
            "dynamic_batching.preferred_batch_size: 1 (expected 1 to max_batch_size"},
           {"dynamic_batching { priority_levels: 2 }",
            "dynamic_batching.default_priority_level: 0 (expected 1 to priority_levels"},
           {"dynamic_batching { default_priority_level: 2 }", "dynamic_batching.priority_levels"},
           {"dynamic_batching { priority_levels: 18446744073709551615 default_priority_level: 1 }",
            "dynamic_batching.priority_levels: 18446744073709551615 (expected at most"},
           {"dynamic_batching { priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 2 value { } } }",
            "dynamic_batching.priority_queue_policy[2]"},
           {"dynamic_batching { preserve_ordering: true priority_levels: 2 "
            "default_priority_level: 1 }",
            "dynamic_batching.priority_levels: 2 with preserve_ordering"},
           {"dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: "
            "DELAY default_timeout_microseconds: 1 } }",
            "dynamic_batching.default_queue_policy.timeout_action: DELAY"},
           {"version_policy { latest { } }", "version_policy.latest.num_versions: 0"},
           {"version_policy { specific { } }", "version_policy.specific.versions: no versions"},
           {"version_policy { specific { versions: 0 } }", "version_policy.specific.versions: 0"},
           {"instance_group { count: -1 }", "instance_group[0].count: -1"},
           {"instance_group { kind: KIND_CPU gpus: 0 }",
            "instance_group[0].gpus: GPUs with KIND_CPU"},
           {"instance_group { gpus: [ 1, 1 ] }", "instance_group[0].gpus: duplicate GPU 1"},
           {"output { name: \"z\" data_type: TYPE_FP32 dims: 1 label_filename: \"/etc/passwd\" }",
            "output[0].label_filename: '/etc/passwd' (expected"},
           {"output { name: \"z\" data_type: TYPE_FP32 dims: 1 label_filename: \"none.txt\" }",
            "output[0].label_filename: cannot read 'none.txt'"},
           {"max_batch_size: -1", "max_batch_size: -1 (expected 0, not batched, or more)"},
           {"dynamic_batching { max_queue_delay_microseconds: 60000001 }",
            "dynamic_batching.max_queue_delay_microseconds: 60000001 (expected at most 60000000"},
           {"input { data_type: TYPE_FP32 dims: 1 }", "input[0].name: the name is empty"},
           {"input { name: \"x\" data_type: TYPE_FP32 dims: 1 }",
            "input[1].name: duplicate name 'x'"},
           {"input { name: \"z\" dims: 1 }",
            "input[0].data_type: unsupported datatype TYPE_INVALID"},
           {"output { name: \"z\" data_type: TYPE_STRING dims: 1 }",
            "output[0].data_type: unsupported datatype TYPE_STRING"},
           {"output { name: \"z\" data_type: TYPE_FP32 dims: 0 }",
            "output[0].dims: 0 (expected a size"},
           {"output { name: \"z\" data_type: TYPE_FP32 dims: -2 }",
            "output[0].dims: -2 (expected a size"},
       }) {
    EXPECT_THAT(ParseWith(text),
                StatusIs(kInvalid, HasSubstr(absl::StrCat("config.pbtxt: ", message))))
        << text;
  }
}

TEST(ParseConfigTest, ReadsBroadcastInputs) {
  const auto with = [](const std::string& names) {
    return ParseWith(absl::StrCat(
        "max_batch_size: 8\n", "input { name: \"mask\" data_type: TYPE_BOOL dims: 3 }\n",
        "parameters { key: \"broadcast\" value { string_value: \"", names, "\" } }"));
  };
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, with("mask"));
  EXPECT_TRUE(config.inputs[0].broadcast);
  EXPECT_FALSE(config.inputs[1].broadcast);
  EXPECT_THAT(with("other"), StatusIs(kInvalid, AllOf(HasSubstr("parameters[\"broadcast\"]"),
                                                      HasSubstr("unknown input 'other'"))));
}

TEST(ParseConfigTest, RequiresInputsAndOutputs) {
  EXPECT_THAT(Parse(""), StatusIs(kInvalid, HasSubstr("input: no tensors")));
  EXPECT_THAT(Parse("input { name: \"x\" data_type: TYPE_FP32 dims: 1 }"),
              StatusIs(kInvalid, HasSubstr("output: no tensors")));
}

TEST(ReadConfigFileTest, ReadsTheFile) {
  const TempDir dir;
  dir.Write("config.pbtxt", kTensors);
  EXPECT_THAT(ReadConfigFile(dir.path() / "config.pbtxt", "m"), IsOk());
  EXPECT_THAT(ReadConfigFile(dir.path() / "missing", "m"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

TEST(ReadConfigFileTest, ReadsLabelsFromTheModelsFolder) {
  const TempDir dir;
  dir.Write("labels.txt", "cat\r\ndog\n");
  dir.Write("config.pbtxt", R"(
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" })");
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                             ReadConfigFile(dir.path() / "config.pbtxt", "m"));
  EXPECT_THAT(config.outputs[0].labels, ElementsAre("cat", "dog"));
}

TEST(ReadConfigFileTest, DoesNotBlockOnAPipe) {
  const TempDir dir;
  SilentPipe pipe(dir.path() / "config.pbtxt");
  EXPECT_THAT(ReadConfigFile(dir.path() / "config.pbtxt", "m"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.pbtxt")));
  EXPECT_FALSE(pipe.WasWaitedFor());
}

TEST(ReadConfigFileTest, RejectsAFolder) {
  const TempDir dir;
  std::filesystem::create_directories(dir.path() / "config.pbtxt");
  EXPECT_THAT(ReadConfigFile(dir.path() / "config.pbtxt", "m"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.pbtxt")));
}

TEST(ParseConfigJsonTest, MatchesTextFormat) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseConfigJson(R"({
    "max_batch_size": 8, "dynamicBatching": {"preferredBatchSize": [4]},
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["3"]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [5]}]})",
                                                                       "", "m"));
  EXPECT_EQ(config.max_batch_size, 8);
  EXPECT_THAT(config.preferred_batch_sizes, ElementsAre(4));
  for (const char* json : {"", "{", "[]", "{\"max_batch_sise\": 1}", "{\"max_batch_size\": {}}"}) {
    EXPECT_THAT(ParseConfigJson(json, "", "m"),
                StatusIs(kInvalid, HasSubstr("parameters[\"config\"]")))
        << json;
  }
}

TEST(ParseConfigJsonTest, RejectsAPartialConfiguration) {
  constexpr char kInput[] = R"("input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}])";
  for (const auto& [json, missing] :
       {std::pair<std::string, std::string>{"{\"max_batch_size\": 4}", "'input' is missing"},
        {absl::StrCat("{", kInput, "}"), "'output' is missing"}}) {
    EXPECT_THAT(ParseConfigJson(json, "", "m"),
                StatusIs(kInvalid, AllOf(HasSubstr(missing), HasSubstr("whole configuration"))));
  }
}

TEST(ReadConfigFileTest, ReadsAnEmptyFile) {
  const TempDir dir;
  dir.Write("config.pbtxt", "");
  EXPECT_THAT(ReadConfigFile(dir.path() / "config.pbtxt", "m"),
              StatusIs(kInvalid, HasSubstr("input: no tensors")));
}

}  // namespace
}  // namespace braid

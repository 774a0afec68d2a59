#include "server/models/pair/pair_manifest.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;

json Slot(const char* role, const char* name) { return {{"role", role}, {"name", name}}; }

json Gradient(const char* role, const char* name) {
  return {{"role", role}, {"name", name}, {"depends_on", {"y"}}};
}

// Manifest of y = batch_norm(x) @ weight, with a tied weight.
json Manifest() {
  const json program = {
      {"precision", "model"},
      {"eval",
       {{"graph", "eval"},
        {"inputs", {Slot("parameter", "weight"), Slot("buffer", "mean"), Slot("input", "x")}},
        {"outputs", {Slot("output", "y")}}}},
      {"forward",
       {{"graph", "fw"},
        {"inputs", {Slot("parameter", "twin"), Slot("buffer", "mean"), Slot("input", "x")}},
        {"outputs",
         {Slot("new_buffer", "mean"), Slot("output", "y"), Slot("saved", "s"),
          Slot("saved", "t")}}}},
      {"backward",
       {{"graph", "bw"},
        {"inputs", {Slot("saved", "t"), Slot("new_buffer", "mean"), Slot("output_gradient", "y")}},
        {"outputs",
         {Gradient("parameter_gradient", "weight"), Gradient("parameter_gradient", "twin")}}}}};
  const json part = {
      {"path", ""},
      {"inputs", {{{"name", "x"}, {"dtype", "INT64"}, {"shape", {"batch", 3}}, {"range", {0, 9}}}}},
      {"outputs", {{{"name", "y"}, {"dtype", "FP32"}, {"shape", {"batch", 2}}}}},
      {"min_training_rows", 2},
      {"min_evaluation_rows", 1},
      {"programs", {program}}};
  return {{"format", "braid-pair"},
          {"schema_version", 1},
          {"torch_version", "2.10.1"},
          {"device", "cpu"},
          {"state",
           {{{"name", "weight"},
             {"kind", "parameter"},
             {"trainable", true},
             {"dtype", "FP32"},
             {"shape", {3, 2}}},
            {{"name", "twin"},
             {"kind", "parameter"},
             {"trainable", true},
             {"dtype", "FP32"},
             {"shape", {3, 2}},
             {"tied_to", "weight"}},
            {{"name", "mean"}, {"kind", "buffer"}, {"dtype", "FP32"}, {"shape", {3}}}}},
          {"chains", {{""}}},
          {"parts", {part}}};
}

TEST(PairManifestTest, ReadsAllSlots) {
  BRAID_ASSERT_OK_AND_ASSIGN(const PairManifest manifest, ParsePairManifest(Manifest().dump()));
  EXPECT_EQ(manifest.torch_version, "2.10.1");  // other versions are not rejected here
  EXPECT_EQ(manifest.device, "cpu");
  ASSERT_THAT(manifest.state, SizeIs(3));
  EXPECT_EQ(manifest.state[1].tensor, 0);  // tied
  EXPECT_EQ(manifest.state[2].tensor, 2);
  EXPECT_FALSE(manifest.state[2].is_parameter);
  EXPECT_THAT(manifest.chains, ElementsAre(ElementsAre("")));
  ASSERT_THAT(manifest.stages, SizeIs(1));
  const PairStage& part = manifest.stages[0];
  EXPECT_THAT(part.inputs[0].shape, ElementsAre(-1, 3));
  EXPECT_EQ(part.inputs[0].range->max, 9);
  EXPECT_THAT(part.outputs[0].shape, ElementsAre(-1, 2));
  EXPECT_EQ(part.min_training_rows, 2);
  const PairProgram& program = part.programs[0];
  EXPECT_EQ(program.autocast, std::nullopt);
  EXPECT_EQ(program.saved, 2);
  EXPECT_EQ(program.forward->inputs[0].index, 0);  // the first of the tied entries
  EXPECT_EQ(program.backward->inputs[0].role, PairRole::kSaved);
  EXPECT_EQ(program.backward->inputs[0].index, 1);
  EXPECT_EQ(program.backward->outputs[1].index, 0);
  EXPECT_THAT(program.backward->outputs[0].depends_on, ElementsAre(0));
}

TEST(PairManifestTest, AcceptsModelWithoutTrainingGraphs) {
  json manifest = Manifest();
  json& program = manifest["parts"][0]["programs"][0];
  program.erase("backward");
  EXPECT_THAT(ParsePairManifest(manifest.dump()), IsOk());
  program.erase("forward");
  BRAID_ASSERT_OK_AND_ASSIGN(const PairManifest read, ParsePairManifest(manifest.dump()));
  EXPECT_FALSE(read.stages[0].programs[0].forward);
}

TEST(PairManifestTest, ReadsASecondSetOfPartsForModulesInEvaluationMode) {
  json manifest = Manifest();
  manifest["modules"] = {"norm", "norm.inner"};
  manifest["eval_modules"] = {"norm.inner"};
  manifest["parts"].push_back(manifest["parts"][0]);
  manifest["parts"][1]["eval_modules"] = true;
  BRAID_ASSERT_OK_AND_ASSIGN(const PairManifest read, ParsePairManifest(manifest.dump()));
  EXPECT_THAT(read.modules, ElementsAre("norm", "norm.inner"));
  EXPECT_THAT(read.eval_modules, ElementsAre("norm.inner"));
  EXPECT_FALSE(read.stages[0].eval_modules);
  EXPECT_TRUE(read.stages[1].eval_modules);
}

TEST(PairManifestTest, WithoutModulesTheyAreThoseWithState) {
  const std::string text =
      absl::StrReplaceAll(Manifest().dump(), {{"\"mean\"", "\"body.norm.mean\""}});
  BRAID_ASSERT_OK_AND_ASSIGN(const PairManifest read, ParsePairManifest(text));
  EXPECT_THAT(read.modules, ElementsAre("body.norm"));
  EXPECT_THAT(read.eval_modules, ElementsAre());
}

// Manifest() with an input [batch, seq, 8*height] and an output [batch, 2, (seq + 1)//2].
json VariableManifest() {
  json manifest = Manifest();
  manifest["schema_version"] = 2;
  manifest["symbols"] = {{{"name", "seq"}, {"min", 2}, {"max", 512}},
                         {{"name", "height"}, {"min", 1}}};
  manifest["parts"][0]["inputs"][0]["shape"] = {"batch", "seq", "8*height"};
  manifest["parts"][0]["outputs"][0]["shape"] = {"batch", 2, "(seq + 1)//2"};
  return manifest;
}

TEST(PairManifestTest, ReadsTheBatchDimOfClients) {
  json manifest = VariableManifest();
  manifest["schema_version"] = 3;
  manifest["parts"][0]["inputs"][0]["batch_dim"] = 1;
  BRAID_ASSERT_OK_AND_ASSIGN(const PairManifest read, ParsePairManifest(manifest.dump()));
  EXPECT_EQ(read.stages[0].inputs[0].batch_dim, 1);
  EXPECT_EQ(read.stages[0].outputs[0].batch_dim, 0);
}

TEST(PairManifestTest, ReadsSizesThatVary) {
  BRAID_ASSERT_OK_AND_ASSIGN(const PairManifest read, ParsePairManifest(VariableManifest().dump()));
  const PairTensor& input = read.stages[0].inputs[0];
  EXPECT_THAT(input.shape, ElementsAre(-1, -1, -1));
  ASSERT_THAT(input.variable_dims, SizeIs(2));
  EXPECT_EQ(input.variable_dims[0].dim, 0);
  EXPECT_EQ(input.variable_dims[0].symbol, "seq");
  EXPECT_EQ(input.variable_dims[0].factor, 1);
  EXPECT_EQ(input.variable_dims[0].min, 2);
  EXPECT_EQ(input.variable_dims[0].max, 512);
  EXPECT_EQ(input.variable_dims[1].dim, 1);
  EXPECT_EQ(input.variable_dims[1].factor, 8);
  EXPECT_EQ(input.variable_dims[1].max, std::numeric_limits<int64_t>::max());
  EXPECT_THAT(read.stages[0].outputs[0].shape, ElementsAre(-1, 2, -1));
  EXPECT_THAT(read.stages[0].outputs[0].variable_dims, SizeIs(0));
}

TEST(PairManifestTest, StagesHaveSizesOfTheirOwn) {
  json manifest = VariableManifest();
  manifest["parts"].push_back(manifest["parts"][0]);
  manifest["parts"][1]["path"] = "head";
  manifest["parts"][1]["inputs"][0]["shape"] = {"batch", "size1", 4};
  BRAID_ASSERT_OK_AND_ASSIGN(const PairManifest read, ParsePairManifest(manifest.dump()));
  EXPECT_THAT(read.stages[1].inputs[0].shape, ElementsAre(-1, -1, 4));
  EXPECT_THAT(read.stages[1].inputs[0].variable_dims, SizeIs(0));
}

struct Damage {
  const char* name;
  std::function<void(json&)> make;
  std::vector<std::string> said;
};

class DamagedManifestTest : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedManifestTest, IsRejectedByFieldAndValue) {
  json manifest = Manifest();
  GetParam().make(manifest);
  const auto read = ParsePairManifest(manifest.dump());
  for (const std::string& said : GetParam().said) {
    EXPECT_THAT(read, StatusIs(kRefused, HasSubstr(said)));
  }
}

// Replaces `manifest` by one with sizes that vary.
json& Variable(json& manifest) { return manifest = VariableManifest(); }

json& Program(json& manifest) { return manifest["parts"][0]["programs"][0]; }

INSTANTIATE_TEST_SUITE_P(
    All, DamagedManifestTest,
    ::testing::Values(
        Damage{"NoObject", [](json& m) { m = json::array(); }, {"not a JSON object"}},
        Damage{"OtherFormat", [](json& m) { m["format"] = "x"; }, {"format: 'x'", "braid-pair"}},
        Damage{"NoRowsToTrain",
               [](json& m) { m["parts"][0]["min_training_rows"] = 0; },
               {"parts[0].min_training_rows: 0", "at least 1"}},
        Damage{"ChainOfNoParts",
               [](json& m) { m["chains"] = {{"third"}}; },
               {"chains[0]: 'third' is not a part"}},
        Damage{"NoPartsForEvalModules",
               [](json& m) { m["eval_modules"] = {"norm"}; },
               {"parts with \"eval_modules\" are missing"}},
        Damage{"OtherSchema",
               [](json& m) { m["schema_version"] = 7; },
               {"schema_version: 7", "expected 1"}},
        Damage{"BatchDimOutOfRange",
               [](json& m) { m["parts"][0]["inputs"][0]["batch_dim"] = 9; },
               {"parts[0].inputs[0].batch_dim: 9", "less than"}},
        Damage{"NoTorch", [](json& m) { m.erase("torch_version"); }, {"has no \"torch_version\""}},
        Damage{"NoState", [](json& m) { m.erase("state"); }, {"has no \"state\""}},
        Damage{"OtherDevice", [](json& m) { m["device"] = "tpu"; }, {"device: 'tpu'", "\"cuda\""}},
        Damage{"OtherKind", [](json& m) { m["state"][2]["kind"] = "x"; }, {"state[2].kind: 'x'"}},
        Damage{"OtherDatatype",
               [](json& m) { m["state"][0]["dtype"] = "FP8"; },
               {"state[0].dtype: 'FP8'", "FP32"}},
        Damage{"NegativeSize",
               [](json& m) { m["state"][0]["shape"][1] = -2; },
               {"state[0].shape[1]", "-2"}},
        Damage{"EndlessSize",
               [](json& m) {
                 m["state"][2]["shape"] = {int64_t{1} << 62, 8};
               },
               {"state[2]", "too many elements"}},
        Damage{"TrainableIntegers",
               [](json& m) { m["state"][0]["dtype"] = "INT64"; },
               {"state[0]", "trainable"}},
        Damage{"NameTwice",
               [](json& m) { m["state"][2]["name"] = "weight"; },
               {"state[2]", "'weight' is a duplicate"}},
        Damage{"TiedToNobody",
               [](json& m) { m["state"][1]["tied_to"] = "x"; },
               {"state[1].tied_to: 'x' is unknown"}},
        Damage{"TiedToAnotherShape",
               [](json& m) {
                 m["state"][1]["shape"] = {2, 3};
               },
               {"state[1].tied_to", "another kind, datatype or shape"}},
        Damage{"NoParts", [](json& m) { m["parts"] = json::array(); }, {"parts", "whole model"}},
        Damage{"AStageFirst",
               [](json& m) { m["parts"][0]["path"] = "first"; },
               {"parts", "whole model"}},
        Damage{"NoInputs",
               [](json& m) { m["parts"][0]["inputs"] = json::array(); },
               {"parts[0].inputs: empty"}},
        Damage{"NoBatch",
               [](json& m) { m["parts"][0]["inputs"][0]["shape"] = json::array(); },
               {"parts[0]", "'x' has no batch dimension"}},
        Damage{"FixedBatch",
               [](json& m) { m["parts"][0]["inputs"][0]["shape"][0] = 5; },
               {"parts[0].inputs[0].shape[0]"}},
        Damage{"BatchByAnotherName",
               [](json& m) { m["parts"][0]["inputs"][0]["shape"][0] = "2*batch"; },
               {"parts[0].inputs[0].shape[0]: '2*batch' (expected \"batch\""}},
        Damage{"BatchTwice",
               [](json& m) { m["parts"][0]["outputs"][0]["shape"][1] = "batch"; },
               {"parts[0].outputs[0].shape[1]"}},
        Damage{"UnknownSymbol",
               [](json& m) { Variable(m)["parts"][0]["inputs"][0]["shape"][1] = "length"; },
               {"parts[0].inputs[0].shape[1]: 'length' (expected a symbol"}},
        Damage{"FactorOfZero",
               [](json& m) { Variable(m)["parts"][0]["inputs"][0]["shape"][1] = "0*seq"; },
               {"parts[0].inputs[0].shape[1]: '0*seq'"}},
        Damage{"SymbolWithoutSymbols",
               [](json& m) { m["parts"][0]["inputs"][0]["shape"][1] = "seq"; },
               {"parts[0].inputs[0].shape[1]: expected an integer"}},
        Damage{"SymbolTwice",
               [](json& m) { Variable(m)["symbols"][1]["name"] = "seq"; },
               {"symbols[1].name: 'seq' is a duplicate"}},
        Damage{"BoundsOfNothing",
               [](json& m) { Variable(m)["symbols"][0]["max"] = 1; },
               {"symbols[0]: sizes 2 to 1"}},
        Damage{"SizeOfZero",
               [](json& m) { Variable(m)["symbols"][0]["min"] = 0; },
               {"symbols[0]: sizes 0 to 512", "at least 1"}},
        Damage{"RangeOfNothing",
               [](json& m) { m["parts"][0]["inputs"][0]["range"] = {5, 1}; },
               {"parts[0].inputs[0].range: minimum 5 exceeds maximum 1"}},
        Damage{"RangeOfFloats",
               [](json& m) { m["parts"][0]["inputs"][0]["dtype"] = "FP32"; },
               {"parts[0].inputs[0].range", "FP32"}},
        Damage{"PartTwice",
               [](json& m) { m["parts"].push_back(m["parts"][0]); },
               {"parts[1]", "'' is a duplicate"}},
        Damage{"PrecisionTwice",
               [](json& m) { m["parts"][0]["programs"].push_back(Program(m)); },
               {"parts[0].programs[1]", "duplicate precision \"model\""}},
        Damage{"EmptyChain", [](json& m) { m["chains"] = {json::array()}; }, {"chains[0]: empty"}},
        Damage{"GradientOfNoOutput",
               [](json& m) { Program(m)["backward"]["outputs"][0]["depends_on"] = json::array(); },
               {"programs[0].backward.outputs[0].depends_on: empty"}},
        Damage{"NoPrograms",
               [](json& m) { m["parts"][0]["programs"] = json::array(); },
               {"parts[0].programs", "\"model\""}},
        Damage{"OtherPrecision",
               [](json& m) { Program(m)["precision"] = "int4"; },
               {"parts[0].programs[0].precision: 'int4'"}},
        Damage{"BackwardAlone",
               [](json& m) { Program(m).erase("forward"); },
               {"\"backward\" without a \"forward\""}},
        Damage{"UnknownRole",
               [](json& m) { Program(m)["eval"]["inputs"][0]["role"] = "weights"; },
               {"programs[0].eval.inputs[0].role: 'weights' is not a valid role"}},
        Damage{"RoleOfAnotherGraph",
               [](json& m) { Program(m)["eval"]["inputs"][0] = Slot("saved", "s"); },
               {"programs[0].eval.inputs[0].role: 'saved'"}},
        Damage{"UnknownParameter",
               [](json& m) { Program(m)["eval"]["inputs"][0]["name"] = "w"; },
               {"programs[0].eval.inputs[0].name: 'w' is unknown"}},
        Damage{"ParameterAsABuffer",
               [](json& m) { Program(m)["eval"]["inputs"][0]["role"] = "buffer"; },
               {"'weight' is unknown"}},
        Damage{"AnOutputTooFew",
               [](json& m) { Program(m)["eval"]["outputs"] = json::array(); },
               {"programs[0].eval: 0 outputs (expected 1)"}},
        Damage{"AnOutputTwice",
               [](json& m) { Program(m)["eval"]["outputs"].push_back(Slot("output", "y")); },
               {"programs[0].eval", "duplicate"}},
        Damage{"SavedTwice",
               [](json& m) { Program(m)["forward"]["outputs"][3]["name"] = "s"; },
               {"programs[0].forward.outputs[3].name: 's' is a duplicate"}},
        Damage{"SavedByNobody",
               [](json& m) { Program(m)["backward"]["inputs"][0]["name"] = "u"; },
               {"programs[0].backward.inputs[0].name: 'u' is unknown"}},
        Damage{"BufferThatForwardLeaves",
               [](json& m) { Program(m)["forward"]["outputs"].erase(0); },
               {"programs[0].backward", "'mean'"}},
        Damage{"GradientOfAFrozenParameter",
               [](json& m) { m["state"][0]["trainable"] = m["state"][1]["trainable"] = false; },
               {"programs[0].backward.outputs[0].name: 'weight' is not trainable"}},
        Damage{"GradientOfNothing",
               [](json& m) { Program(m)["backward"]["outputs"][0].erase("depends_on"); },
               {"programs[0].backward.outputs[0]: has no \"depends_on\""}}),
    [](const auto& test) { return test.param.name; });

TEST(PairManifestTest, RejectsInvalidJson) {
  for (const char* text : {"", "{", "\xff\xfe", "[1,", "nul"}) {
    EXPECT_THAT(ParsePairManifest(text), StatusIs(kRefused, HasSubstr("not a JSON object")));
  }
}

}  // namespace
}  // namespace braid

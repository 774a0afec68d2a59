#include "server/models/archive/self_test.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/json_fields.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/graph/graph_json.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;

template <typename T>
std::string Base64(const std::vector<T>& values) {
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

json Given(std::vector<int64_t> shape, const std::vector<float>& values) {
  return {{"dtype", "FP32"}, {"shape", std::move(shape)}, {"data", Base64(values)}};
}

json Sample(std::vector<int64_t> shape, const std::vector<double>& values) {
  return {{"dtype", "FP32"},
          {"shape", std::move(shape)},
          {"stride", 1},
          {"data", Base64(values)},
          {"tolerance", 0.01}};
}

std::shared_ptr<const ExportedGraph> Load(json graph) {
  const json program = ProgramOf(std::move(graph));
  auto loaded = ExportedGraph::Load("", "graph", JsonField(program, ""));
  EXPECT_THAT(loaded, IsOk());
  return *std::move(loaded);
}

json Times(const json& a, const json& b, const char* result) {
  return Aten("mul.Tensor", {{"self", a}, {"other", b}}, {Tensor(result)});
}

// y = x * w in evaluation mode. For training, the same with saved tensors, and the gradient of w in
// two parts, like that of a tied weight.
TestedModel Model() {
  const PackageDim batch{.min = 1, .symbol = "batch"};
  TestedModel model;
  model.inputs = {{"parameter/w", DataType::kFp32, {{.min = 1, .max = 1}}},
                  {"input/x", DataType::kFp32, {batch}},
                  {"output_gradient/y", DataType::kFp32, {batch}}};
  const json eval =
      Graph({Tensor("x"), Tensor("w")}, {Times(Tensor("x"), Tensor("w"), "y")}, {Tensor("y")});
  const json forward = Graph({Tensor("x"), Tensor("w")}, {Times(Tensor("x"), Tensor("w"), "y")},
                             {Tensor("y"), Tensor("x")});
  const json backward = Graph(
      {Tensor("g"), Tensor("s")},
      {Times(Tensor("g"), Tensor("s"), "p"),
       Aten("sum.dim_IntList", {{"self", Tensor("p")}, {"dim", Ints({0})}, {"keepdim", Bool(true)}},
            {Tensor("d")})},
      {Tensor("d"), Tensor("d")});
  model.graphs = {
      {"eval", "eval", Load(eval), {"input/x", "parameter/w"}, {"output/y"}},
      {"fw", "forward", Load(forward), {"input/x", "parameter/w"}, {"output/y", "saved/0"}},
      {"bw",
       "backward",
       Load(backward),
       {"output_gradient/y", "saved/0"},
       {"parameter_gradient/w", "parameter_gradient/w"}}};
  return model;
}

json Record() {
  return {
      {"format", "braid-self-test"},
      {"schema_version", 1},
      {"torch_version", "2.11.0"},
      {"seed", 20},
      {"given",
       {{"parameter/w", Given({1}, {2})},
        {"input/x", Given({2}, {3, 5})},
        {"output_gradient/y", Given({2}, {1, 10})}}},
      {"graphs",
       {{{"graph", "eval"}, {"role", "eval"}, {"expected", {{"output/y", Sample({2}, {6, 10})}}}},
        {{"graph", "fw"}, {"role", "forward"}, {"expected", {{"output/y", Sample({2}, {6, 10})}}}},
        {{"graph", "bw"},
         {"role", "backward"},
         {"expected", {{"parameter_gradient/w", Sample({1}, {106})}}}}}}};
}

absl::Status RunRecord(const json& record) {
  const absl::StatusOr<SelfTest> test = SelfTest::Parse(record.dump(), Model());
  return test.ok() ? test->Run(c10::kCPU) : test.status();
}

TEST(SelfTestTest, PassesIfGraphsReturnExpectedResults) {
  EXPECT_THAT(RunRecord(Record()), IsOk());
}

TEST(SelfTestTest, NamesGraphTensorAndDifference) {
  json record = Record();
  record["graphs"][2]["expected"]["parameter_gradient/w"] = Sample({1}, {105.5});
  EXPECT_THAT(RunRecord(record), StatusIs(kRefused,
                                          "graph 'bw', parameter_gradient 'w' differs by up to "
                                          "0.5 (tolerance 0.01)"));
}

TEST(SelfTestTest, NamesTheGraphThatCannotRun) {
  json record = Record();
  record["given"].erase("output_gradient/y");
  EXPECT_THAT(RunRecord(record), StatusIs(absl::StatusCode::kInternal,
                                          "graph 'bw': the self-test has no output_gradient 'y'"));
}

TEST(SelfTestTest, ReturnsErrorsOfOperators) {
  TestedModel model = Model();
  model.inputs[0].dims = {{.min = 3, .max = 3}};
  json record = Record();
  record["given"]["parameter/w"] = Given({3}, {1, 2, 3});
  const auto test = SelfTest::Parse(record.dump(), model);
  ASSERT_THAT(test, IsOk());
  EXPECT_THAT(test->Run(c10::kCPU),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("graph 'eval': The size of tensor")));
}

TEST(SelfTestTest, UsesTheRecordedSeed) {
  TestedModel model = Model();
  model.graphs.resize(1);
  model.graphs[0].graph =
      Load(Graph({Tensor("x"), Tensor("w")},
                 {Aten("bernoulli.p", {{"self", Tensor("x")}, {"p", Float(0.5)}}, {Tensor("y")})},
                 {Tensor("y")}));
  json record = Record();
  record["graphs"].erase(2);
  record["graphs"].erase(1);
  std::string first;
  for (int run = 0; run < 3; ++run) {
    const absl::Status status = SelfTest::Parse(record.dump(), model)->Run(c10::kCPU);
    EXPECT_THAT(status, StatusIs(kRefused, HasSubstr("differs")));
    first = run == 0 ? std::string(status.message()) : first;
    EXPECT_EQ(status.message(), first);
  }
}

struct Damage {
  const char* name;
  std::function<void(json&)> make;
  const char* said;
};

class DamagedSelfTestTest : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedSelfTestTest, IsRejectedByFieldAndValue) {
  json record = Record();
  GetParam().make(record);
  EXPECT_THAT(SelfTest::Parse(record.dump(), Model()),
              StatusIs(kRefused, HasSubstr(GetParam().said)));
}

INSTANTIATE_TEST_SUITE_P(
    All, DamagedSelfTestTest,
    ::testing::Values(
        Damage{"NoObject", [](json& r) { r = json::array(); }, "not a JSON object"},
        Damage{"OtherFormat", [](json& r) { r["format"] = "x"; },
               "format: 'x' (expected braid-self-test)"},
        Damage{"OtherSchema", [](json& r) { r["schema_version"] = 2; },
               "schema_version: unsupported version 2 (expected 1)"},
        Damage{"NoSeed", [](json& r) { r.erase("seed"); }, "has no \"seed\""},
        Damage{"NothingGiven", [](json& r) { r.erase("given"); }, "has no \"given\""},
        Damage{"UnknownTensor", [](json& r) { r["given"]["parameter/v"] = Given({1}, {1}); },
               "given.parameter/v: no graph has this input"},
        Damage{"HugeTensor",
               [](json& r) {
                 r["given"]["input/x"] = {
                     {"dtype", "FP32"},
                     {"shape", {int64_t{1} << 40}},
                     {"generated",
                      {{"seed", 1}, {"mean", 0}, {"scale", 1}, {"min", 0}, {"max", 1}}}};
               },
               "given.input/x: FP32[1099511627776] (expected FP32[from 1])"},
        Damage{"TwoBatchSizes",
               [](json& r) {
                 r["given"]["output_gradient/y"] = Given({3}, {1, 2, 3});
               },
               "given.output_gradient/y: dim 0 is 3 (expected 2, as in another tensor)"},
        Damage{"AGraphTooFew", [](json& r) { r["graphs"].erase(2); },
               "graphs: has 2 graphs (expected 3)"},
        Damage{"AnotherGraph", [](json& r) { r["graphs"][1]["graph"] = "eval"; },
               "graphs[1].graph: 'eval' (expected fw)"},
        Damage{"AnotherRole", [](json& r) { r["graphs"][1]["role"] = "eval"; },
               "graphs[1].role: 'eval' (expected forward)"},
        Damage{"NothingExpected", [](json& r) { r["graphs"][0]["expected"] = json::object(); },
               "graphs[0].expected: empty"},
        Damage{"UnknownOutput",
               [](json& r) { r["graphs"][0]["expected"]["output/z"] = Sample({1}, {1}); },
               "graphs[0].expected.output/z: the graph has no such output"},
        Damage{"DamagedSample",
               [](json& r) { r["graphs"][0]["expected"]["output/y"]["stride"] = 0; },
               "graphs[0].expected.output/y: stride 0"}),
    [](const auto& test) { return test.param.name; });

TEST(SelfTestTest, RejectsInvalidJson) {
  for (const char* text : {"", "{", "\xff\xfe", "[1,", "nul"}) {
    EXPECT_THAT(SelfTest::Parse(text, Model()), StatusIs(kRefused, HasSubstr("not a JSON object")));
  }
}

}  // namespace
}  // namespace braid

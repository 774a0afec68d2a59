#include "server/models/archive/graph_check.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Tensor(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }

// z = cat(split(x + y)).
json Graph() {
  const json split = {{"as_tensors", {{{"name", "first"}}, {{"name", "second"}}}}};
  const auto node = [](json::array_t arguments, json::array_t outputs) {
    json inputs = json::array();
    for (json& argument : arguments) {
      inputs.push_back({{"name", "self"}, {"arg", std::move(argument)}});
    }
    return json{{"target", "any"}, {"inputs", inputs}, {"outputs", std::move(outputs)}};
  };
  return {{"inputs", {Tensor("x"), Tensor("y")}},
          {"nodes",
           {node({Tensor("x"), Tensor("y"), {{"as_none", true}}}, {Tensor("sum")}),
            node({Tensor("sum"), {{"as_int", 2}}}, {split}), node({split}, {Tensor("z")})}},
          {"outputs", {Tensor("z")}}};
}

absl::Status Check(const json& graph) {
  const json signature = {{"input_specs", {1, 2}}, {"output_specs", {1}}};
  return CheckGraph(JsonField(graph, "graph"), JsonField(signature, "signature"));
}

TEST(GraphCheckTest, AcceptsGraphsOfTorchExport) { EXPECT_THAT(Check(Graph()), IsOk()); }

TEST(GraphCheckTest, RejectsInvalidStructure) {
  const std::vector<std::pair<std::string, json>> broken = {
      {"/inputs", nullptr},
      {"/nodes", 1},
      {"/outputs", json::array()},
      {"/inputs", {Tensor("x")}},
      {"/inputs/0", "1e+308"},
      {"/inputs/0", json::object()},
      {"/inputs/0/as_tensor", json::object()},
      {"/inputs/0/as_tensor/name", 7},
      {"/nodes/0/inputs", nullptr},
      {"/nodes/0/inputs/0", json::object()},
      {"/nodes/0/inputs/0/arg", "1e+308"},
      {"/nodes/0/inputs/0/arg", {{"as_tensor", 1}, {"as_int", 1}}},
      {"/nodes/0/inputs/0/arg", {{"tensor", 1}}},
      {"/nodes/2/inputs/0/arg/as_tensors", 3},
      {"/nodes/0/outputs", nullptr},
      {"/nodes/0/outputs/0", json::array()},
  };
  for (const auto& [where, value] : broken) {
    json graph = Graph();
    graph[json::json_pointer(where)] = value;
    EXPECT_EQ(Check(graph).code(), absl::StatusCode::kFailedPrecondition) << where << value;
  }
}

TEST(GraphCheckTest, RejectsUndefinedTensors) {
  for (const std::string where : {"/nodes/0/inputs/1/arg", "/nodes/1/inputs/0/arg", "/outputs/0"}) {
    json graph = Graph();
    graph[json::json_pointer(where)] = Tensor("nowhere");
    EXPECT_THAT(Check(graph), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("'nowhere' is undefined")))
        << where;
  }
  json late = Graph();
  std::swap(late["nodes"][0], late["nodes"][1]);
  EXPECT_THAT(Check(late), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("graph.nodes[0].inputs[0].arg")));
}

}  // namespace
}  // namespace braid

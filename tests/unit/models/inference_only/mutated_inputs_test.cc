#include "server/models/inference_only/mutated_inputs.h"

#include <set>
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
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json Tensor(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }

// arguments: names of the operator's arguments, with their tensors.
json Node(const std::string& target,
          const std::vector<std::pair<std::string, std::string>>& arguments,
          const std::string& result) {
  json inputs = json::array();
  for (const auto& [name, tensor] : arguments) {
    inputs.push_back({{"name", name}, {"arg", Tensor(tensor)}});
  }
  return {{"target", "torch.ops." + target},
          {"inputs", inputs},
          {"outputs", json::array({Tensor(result)})}};
}

// Analyses a graph with a buffer, x and `nodes`. "half" has a different datatype than all others.
json Graph(json::array_t nodes, const std::string& result = "x") {
  const auto value = [](int type) { return json{{"dtype", type}}; };
  return {{"inputs", json::array({Tensor("buffer"), Tensor("x")})},
          {"nodes", std::move(nodes)},
          {"outputs", json::array({Tensor(result)})},
          {"tensor_values",
           {{"buffer", value(7)}, {"x", value(7)}, {"same", value(7)}, {"half", value(6)}}}};
}

absl::StatusOr<std::set<std::string>> Written(json::array_t nodes) {
  const json graph = Graph(std::move(nodes));
  return MutatedInputs(JsonField(graph, "graph"), {"x"});
}

json Add(const std::string& tensor) { return Node("aten.add_.Scalar", {{"self", tensor}}, "sum"); }

TEST(MutatedInputsTest, AllowsModificationOfIntermediateTensors) {
  EXPECT_THAT(*Written({}), IsEmpty());
  EXPECT_THAT(*Written({Node("aten.clone.default", {{"self", "buffer"}}, "copy"),
                        Node("aten.view.default", {{"self", "copy"}}, "view"), Add("view")}),
              IsEmpty());
  EXPECT_THAT(*Written({Node("aten.linear.default", {{"input", "x"}, {"weight", "buffer"}}, "y"),
                        Add("y")}),
              IsEmpty());
}

TEST(MutatedInputsTest, FindsInputsModifiedThroughViews) {
  EXPECT_THAT(*Written({Add("x")}), ElementsAre("x"));
  EXPECT_THAT(*Written({Node("aten.flatten.using_ints", {{"self", "x"}}, "flat"), Add("flat")}),
              ElementsAre("x"));
  EXPECT_THAT(*Written({Node("aten.dropout.default", {{"input", "x"}}, "kept"), Add("kept")}),
              ElementsAre("x"));
}

TEST(MutatedInputsTest, RejectsModifiedBuffers) {
  const auto refused = [](json::array_t nodes) { return Written(std::move(nodes)).status(); };
  const auto changes =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("changes its buffers"), HasSubstr("writes to 'buffer'")));
  EXPECT_THAT(refused({Add("buffer")}), changes);
  EXPECT_THAT(refused({Node("aten.view.default", {{"self", "buffer"}}, "view"),
                       Node("aten.slice.Tensor", {{"self", "view"}}, "part"), Add("part")}),
              changes);
  EXPECT_THAT(refused({Node("aten.relu_.default", {{"self", "y"}}, "same"),
                       Node("aten.mul.out", {{"self", "x"}, {"other", "x"}, {"out", "buffer"}},
                            "product")}),
              changes);
  EXPECT_THAT(refused({Node("unknown.add_.default", {{"to", "buffer"}}, "sum")}), changes);
}

TEST(MutatedInputsTest, TreatsChunksAsViews) {
  json chunk = Node("aten.chunk.default", {{"self", "buffer"}}, "unused");
  chunk["outputs"] = json::array({{{"as_tensors", {{{"name", "first"}}, {{"name", "second"}}}}}});
  EXPECT_THAT(Written({chunk, Add("second")}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'buffer'")));
}

TEST(MutatedInputsTest, TreatsTypeConversionsAsCopies) {
  const auto convert = [](const std::string& result) {
    return Node("aten.to.dtype", {{"self", "buffer"}}, result);
  };
  EXPECT_THAT(*Written({convert("half"), Add("half")}), IsEmpty());
  EXPECT_THAT(Written({convert("same"), Add("same")}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'buffer'")));
}

TEST(MutatedInputsTest, FollowsNestedGraphs) {
  const auto region = [](const std::string& passed, json::array_t nodes,
                         const std::string& result) {
    json inner = Graph(std::move(nodes), result);
    inner["inputs"] = json::array({Tensor("inside")});
    json node = Node("higher_order.wrap_with_set_grad_enabled", {{"", passed}}, "outside");
    node["inputs"].push_back(
        {{"name", ""}, {"arg", {{"as_graph", {{"name", "inner"}, {"graph", inner}}}}}});
    return node;
  };
  EXPECT_THAT(Written({region("buffer", {Add("inside")}, "sum")}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'buffer'")));
  EXPECT_THAT(Written({region("buffer", {}, "inside"), Add("outside")}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'buffer'")));
  EXPECT_THAT(*Written({region("x", {Add("inside")}, "sum")}), ElementsAre("x"));
}

}  // namespace
}  // namespace braid

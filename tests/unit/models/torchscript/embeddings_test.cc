#include "server/models/torchscript/embeddings.h"

#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"
#include "torch/csrc/jit/runtime/graph_executor.h"

namespace braid {
namespace {

// Returns the maximum that is found for input `name` of a module with embeddings of 10 and 4 rows
// whose forward(`arguments`) returns `result`.
std::optional<int64_t> MostOf(const std::string& name, const std::string& arguments,
                              const std::string& body) {
  torch::jit::Module inner("Inner");
  inner.register_parameter("small", at::zeros({4, 2}), /*is_buffer=*/false);
  inner.define("def forward(self, ids):\n  return torch.embedding(self.small, ids)\n");
  torch::jit::Module module = NewModule();
  module.register_parameter("table", at::zeros({10, 3}), /*is_buffer=*/false);
  module.register_buffer("calls", at::zeros({1}));
  module.register_module("inner", inner);
  module.define("def forward(self, " + arguments + "):\n" + body + "\n");
  std::vector<TensorSpec> inputs = {{name, DataType::kInt64, {}}};
  for (const char* other : {"other", "mask"}) {
    if (absl::StrContains(arguments, absl::StrCat(", ", other))) {
      inputs.push_back({other, DataType::kFp32, {}});
    }
  }
  const auto plans = PlanArguments(inputs, module.get_method("forward").function().getSchema());
  EXPECT_THAT(plans.status(), IsOk());
  FindEmbeddingRanges(module, *plans, &inputs);
  return inputs[0].range ? std::optional(inputs[0].range->max) : std::nullopt;
}

TEST(FindEmbeddingRangesTest, FindsIndicesOfEmbeddings) {
  EXPECT_EQ(MostOf("ids", "ids", "  return torch.embedding(self.table, ids)"), 9);
  EXPECT_EQ(MostOf("ids", "ids", "  return torch.embedding(self.table, ids.long().view(-1))"), 9);
  EXPECT_EQ(MostOf("ids", "ids", "  return self.inner.forward(ids.flatten(1))"), 3);
}

TEST(FindEmbeddingRangesTest, SupportsScriptedEmbeddingBags) {
  EXPECT_EQ(MostOf("ids", "ids",
                   "  table = self.table\n"
                   "  if table.dtype == 4 and torch.is_floating_point(ids):\n"
                   "    table, ids = ids, table\n"
                   "  if ids.dim() == 2:\n"
                   "    ids = ids.reshape(-1)\n"
                   "  return torch.embedding(table, ids)"),
            9);
}

TEST(FindEmbeddingRangesTest, FollowsCallsWithoutTheOptimizer) {
  const torch::jit::GraphOptimizerEnabledGuard as_on_workers(false);
  torch::jit::Module module = NewModule();
  torch::jit::Module middle("Middle");
  torch::jit::Module inner("Inner");
  inner.register_parameter("table", at::zeros({4, 2}), /*is_buffer=*/false);
  inner.define("def forward(self, ids):\n  return torch.embedding(self.table, ids)\n");
  middle.register_module("inner", inner);
  middle.define("def forward(self, ids):\n  return self.inner.forward(ids)\n");
  module.register_module("middle", middle);
  module.define("def forward(self, ids):\n  return self.middle.forward(ids)\n");
  module.forward({at::zeros({2}, at::kLong)});  // creates the inlined graph, without the optimizer
  std::vector<TensorSpec> inputs = {{"ids", DataType::kInt64, {}}};
  const auto plans = PlanArguments(inputs, module.get_method("forward").function().getSchema());
  FindEmbeddingRanges(module, *plans, &inputs);
  ASSERT_TRUE(inputs[0].range.has_value());
  EXPECT_EQ(inputs[0].range->max, 3);
}

TEST(FindEmbeddingRangesTest, UsesTheSmallestEmbedding) {
  EXPECT_EQ(MostOf("ids", "ids",
                   "  a = torch.embedding(self.table, ids)\n  return self.inner.forward(ids)"),
            3);
}

TEST(FindEmbeddingRangesTest, FollowsContainers) {
  EXPECT_EQ(
      MostOf("d.ids", "d: Dict[str, Tensor]", "  return torch.embedding(self.table, d['ids'])"), 9);
  EXPECT_EQ(MostOf("t.0", "t: Tuple[Tensor]", "  return torch.embedding(self.table, t[0])"), 9);
  EXPECT_EQ(MostOf("t.0", "t: Tuple[Tensor]",
                   "  ids, = t\n  return torch.embedding(self.table, t[-1]) + ids"),
            9);
}

TEST(FindEmbeddingRangesTest, IgnoresSlices) {
  for (const char* part : {"ids[:, 0]", "ids[:, 0:1]", "ids[0]", "ids.narrow(1, 0, 1)",
                           "ids[ids > 3]", "ids.select(1, 0).long()"}) {
    EXPECT_EQ(
        MostOf("ids", "ids", absl::StrCat("  return torch.embedding(self.table, ", part, ")")),
        std::nullopt)
        << part;
  }
}

TEST(FindEmbeddingRangesTest, IgnoresSlicesOfInputsThatAreAlsoUsedWhole) {
  EXPECT_EQ(MostOf("ids", "ids",
                   "  part = self.inner.forward(ids[:, 0])\n"
                   "  return torch.embedding(self.table, ids)"),
            9);
}

TEST(FindEmbeddingRangesTest, IgnoresNarrowTypes) {
  // TorchScript's numbers for bool and uint8.
  for (const char* type : {"11", "0"}) {
    EXPECT_EQ(
        MostOf("ids", "ids",
               absl::StrCat("  return torch.embedding(self.table, ids.to(", type, ").to(4))")),
        std::nullopt)
        << type;
  }
  EXPECT_EQ(MostOf("ids", "ids", "  return torch.embedding(self.table, ids.to(3).to(4))"), 9);
}

// Returns MostOf() for a statement followed by a lookup of `index`.
std::optional<int64_t> MostAfter(const std::string& statement, const std::string& index = "ids") {
  return MostOf(
      "ids", "ids, other",
      absl::StrCat("  ", statement, "\n  return torch.embedding(self.table, ", index, ")"));
}

TEST(FindEmbeddingRangesTest, IgnoresInputsModifiedInPlace) {
  for (const char* statement :
       {"ids[ids == -100] = 0", "ids.clamp_(0, 9)", "ids += 1", "ids[:, 0] = 0",
        "torch.clamp(ids, 0, 9, out=ids)", "ids.view(-1).t().clamp_(0, 9)",
        "if bool((ids < 0).any()):\n    ids.clamp_(0, 9)", "for i in range(2):\n    ids[i] = 0"}) {
    EXPECT_EQ(MostAfter(statement), std::nullopt) << statement;
  }
  EXPECT_EQ(MostAfter("shape = ids.long().view(-1)\n  shape.clamp_(0, 9)", "shape"), std::nullopt);
}

TEST(FindEmbeddingRangesTest, AllowsModifiedCopies) {
  EXPECT_EQ(MostAfter("copy = ids.clone()\n  copy[copy == -100] = 0"), 9);
  EXPECT_EQ(MostAfter("copy = ids.clone()\n  copy[copy == -100] = 0", "copy"), std::nullopt);
  EXPECT_EQ(MostAfter("ids.clamp_(0, 9)\n  copy = ids.clone()", "copy"), std::nullopt);
}

TEST(FindEmbeddingRangesTest, AllowsModificationOfOtherTensors) {
  EXPECT_EQ(MostAfter("other.sub_(1)"), 9);
  EXPECT_EQ(MostAfter("self.calls.add_(1)"), 9);
  EXPECT_EQ(MostAfter("h = torch.zeros([1])\n  hs = [h]\n  hs.append(ids)\n  h.relu_()"), 9);
  EXPECT_EQ(MostOf("d.ids", "d: Dict[str, Tensor], mask",
                   "  h = torch.zeros([1])\n  hs = [h]\n  hs.append(h)\n  h.relu_()\n"
                   "  mask.sub_(1)\n  self.calls.add_(1)\n"
                   "  return torch.embedding(self.table, d['ids'])"),
            9);
}

TEST(FindEmbeddingRangesTest, IgnoresModifiedContainers) {
  for (const char* statement : {"d['ids'].clamp_(0, 9)", "ids = d['ids']\n  ids[ids == -100] = 0",
                                "d['ids'] = d['ids'].clamp(0, 9)"}) {
    EXPECT_EQ(
        MostOf("d.ids", "d: Dict[str, Tensor]",
               absl::StrCat("  ", statement, "\n  return torch.embedding(self.table, d['ids'])")),
        std::nullopt)
        << statement;
  }
}

TEST(FindEmbeddingRangesTest, IgnoresComputedIndices) {
  EXPECT_EQ(MostOf("ids", "ids", "  return torch.embedding(self.table, ids % 10)"), std::nullopt);
  EXPECT_EQ(MostOf("ids", "ids", "  return ids + 1"), std::nullopt);
}

TEST(FindEmbeddingRangesTest, IgnoresLookupsInBranches) {
  EXPECT_EQ(MostOf("ids", "ids",
                   "  if bool(ids.sum() > 0):\n    return torch.embedding(self.table, ids)\n"
                   "  return torch.zeros([1])"),
            std::nullopt);
}

TEST(FindEmbeddingRangesTest, KeepsConfiguredRanges) {
  torch::jit::Module module = NewModule();
  module.register_parameter("table", at::zeros({10, 3}), /*is_buffer=*/false);
  module.define("def forward(self, ids):\n  return torch.embedding(self.table, ids)\n");
  std::vector<TensorSpec> inputs = {{"ids", DataType::kInt64, {}}};
  inputs[0].range = ValueRange{2, 5};
  const auto plans = PlanArguments(inputs, module.get_method("forward").function().getSchema());
  FindEmbeddingRanges(module, *plans, &inputs);
  EXPECT_EQ(inputs[0].range->min, 2);
  EXPECT_EQ(inputs[0].range->max, 5);
}

}  // namespace
}  // namespace braid

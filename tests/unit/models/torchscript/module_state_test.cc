#include "server/models/torchscript/module_state.h"

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/script_modules.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Module with a parameter `w`, a buffer `b`, and attributes of each kind: an int `n`, a tensor `t`,
// a list `l` and a dict `d` of tensors, and an int list `sizes`.
torch::jit::Module WithAttributes() {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", at::ones({2, 2}), /*is_buffer=*/false);
  module.register_buffer("b", at::ones({2, 2}));
  module.register_attribute("n", c10::IntType::get(), 0);
  module.register_attribute("t", c10::TensorType::get(), at::ones({2, 2}));
  const c10::List<at::Tensor> list({at::ones({2, 2})});
  module.register_attribute("l", c10::ListType::ofTensors(), list);
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("a", at::ones({2, 2}));
  module.register_attribute(
      "d", c10::DictType::create(c10::StringType::get(), c10::TensorType::get()), dict);
  module.register_attribute("sizes", c10::ListType::ofInts(), c10::List<int64_t>({1, 1}));
  return module;
}

std::vector<std::string> Described(const torch::jit::Module& module, Modes modes) {
  std::vector<std::string> described;
  for (const StateChange& change : FindStateChanges(module, modes)) {
    described.push_back(Describe(change));
  }
  return described;
}

// Describes the changes by a forward(x) with these lines.
std::vector<std::string> Changes(const std::string& lines, Modes modes = Modes::kTrainAndEval) {
  torch::jit::Module module = WithAttributes();
  module.define("def forward(self, x):\n" + lines + "\n  return x\n");
  return Described(module, modes);
}

TEST(StateChangesTest, IgnoresArgumentsAndLocalValues) {
  EXPECT_THAT(Changes("  x.add_(1)\n  x[0].mul_(2)"), IsEmpty());
  EXPECT_THAT(Changes("  y = self.w * 2\n  y.relu_()\n  y[0] = 1\n  self.w.clone().zero_()"),
              IsEmpty());
  EXPECT_THAT(Changes("  l = [self.w]\n  l.append(self.t)\n  d = {'a': self.w}\n  d['b'] = x"),
              IsEmpty());
  EXPECT_THAT(Changes("  y, z = x.split(self.sizes)\n  y.add_(self.n)\n  z.add_(self.w)"),
              IsEmpty());
  EXPECT_THAT(Changes("  for i in range(3):\n    x = x + self.w\n    x.relu_()"), IsEmpty());
  EXPECT_THAT(Changes("  y = torch.cat([self.w, self.t] + self.l)\n  y.sub_(1)"), IsEmpty());
  EXPECT_THAT(Changes("  y = torch.unsafe_split_with_sizes(x, self.sizes)\n  y[0].sub_(1)"),
              IsEmpty());
}

TEST(StateChangesTest, FindsAssignedAttributes) {
  EXPECT_THAT(Changes("  self.n += 1"), ElementsAre("assigns 'n', which is not a buffer"));
  EXPECT_THAT(Changes("  self.t = self.t + 1"), ElementsAre("assigns 't', which is not a buffer"));
  EXPECT_THAT(Changes("  self.l = [x]"), ElementsAre("assigns 'l', which is not a buffer"));
  EXPECT_THAT(Changes("  self.w = x"), ElementsAre("assigns 'w', a parameter"));
  EXPECT_THAT(Changes("  self.b = x"), ElementsAre("assigns 'b', a buffer"));
}

TEST(StateChangesTest, FindsInPlaceChanges) {
  EXPECT_THAT(Changes("  self.w.mul_(0.9)"),
              ElementsAre("changes in place (aten::mul_) 'w', a parameter"));
  EXPECT_THAT(Changes("  self.t.add_(x)"),
              ElementsAre("changes in place (aten::add_) 't', which is not a buffer"));
  EXPECT_THAT(Changes("  self.b.add_(x)"),
              ElementsAre("changes in place (aten::add_) 'b', a buffer"));
  EXPECT_THAT(Changes("  torch.add(x, 1, out=self.t)"),
              ElementsAre("changes in place (aten::add) 't', which is not a buffer"));
}

TEST(StateChangesTest, FindsChangesThroughViews) {
  for (const char* line : {"self.w[0].mul_(2)", "self.w.view(-1).mul_(2)", "self.w.t().mul_(2)",
                           "self.w.detach()[:, 1].mul_(2)", "self.w.chunk(2)[1].mul_(2)",
                           "self.w.data.mul_(2)", "self.w.mul_(2)[0]"}) {
    EXPECT_THAT(Changes(std::string("  ") + line),
                ElementsAre("changes in place (aten::mul_) 'w', a parameter"))
        << line;
  }
  EXPECT_THAT(Changes("  self.w[0] = 1"),
              ElementsAre("changes in place (aten::copy_) 'w', a parameter"));
  EXPECT_THAT(Changes("  for part in self.w.unbind(0):\n    part.zero_()"),
              ElementsAre("changes in place (aten::zero_) 'w', a parameter"));
}

TEST(StateChangesTest, FindsChangesOfListsAndDicts) {
  EXPECT_THAT(Changes("  self.l.append(x)"),
              ElementsAre("changes in place (aten::append) 'l', which is not a buffer"));
  EXPECT_THAT(Changes("  self.l[0] = x"),
              ElementsAre("changes in place (aten::_set_item) 'l', which is not a buffer"));
  EXPECT_THAT(Changes("  self.d['a'] = x"),
              ElementsAre("changes in place (aten::_set_item) 'd', which is not a buffer"));
  EXPECT_THAT(Changes("  self.sizes.pop()"),
              ElementsAre("changes in place (aten::pop) 'sizes', which is not a buffer"));
  // Changes of their elements are changes of the attribute.
  EXPECT_THAT(Changes("  self.l[0].add_(x)"),
              ElementsAre("changes in place (aten::add_) 'l', which is not a buffer"));
  EXPECT_THAT(Changes("  for key, value in self.d.items():\n    value.add_(x)"),
              ElementsAre("changes in place (aten::add_) 'd', which is not a buffer"));
}

TEST(StateChangesTest, FindsChangesThroughContainers) {
  const auto writes_to_w = ElementsAre("changes in place (aten::zero_) 'w', a parameter");
  EXPECT_THAT(Changes("  l = [self.w, x]\n  l[0].zero_()"), writes_to_w);
  EXPECT_THAT(Changes("  l = [x]\n  l.append(self.w)\n  l[1].zero_()"), writes_to_w);
  EXPECT_THAT(Changes("  l = [x]\n  l.extend([self.w])\n  l[1].zero_()"), writes_to_w);
  EXPECT_THAT(Changes("  d = {'a': self.w}\n  for k, v in d.items():\n    v.zero_()"), writes_to_w);
  EXPECT_THAT(Changes("  y = x\n  if bool(x.any()):\n    y = self.w\n  y.zero_()"), writes_to_w);
  EXPECT_THAT(Changes("  y = x\n  for i in range(2):\n    y.zero_()\n    y = self.w"), writes_to_w);
  // Only the selected element of a tuple counts.
  EXPECT_THAT(Changes("  t = (self.w, x + 1)\n  a, b = t\n  a.zero_()"), writes_to_w);
  EXPECT_THAT(Changes("  t = (self.w, x + 1)\n  a, b = t\n  b.zero_()\n  t[1].zero_()"), IsEmpty());
}

TEST(StateChangesTest, IgnoresMethodsThatForwardDoesNotCall) {
  torch::jit::Module module = WithAttributes();
  module.define(R"(
def reset(self):
  self.n = 0
def count(self):
  self.n += 1
def forward(self, x):
  if bool(x.any()):
    self.count()
  return x
)");
  EXPECT_THAT(Described(module, Modes::kTrainAndEval),
              ElementsAre("assigns 'n', which is not a buffer"));
}

TEST(StateChangesTest, NamesAttributesOfSubmodulesByPath) {
  torch::jit::Module inner = WithAttributes();
  inner.define("def forward(self, x):\n  self.n += 1\n  self.b.add_(x)\n  return x.add_(1)\n");
  torch::jit::Module middle("Middle");
  middle.register_module("inner", inner);
  middle.define("def forward(self, x):\n  self.inner.w.add_(1)\n  return self.inner.forward(x)\n");
  torch::jit::Module module = WithAttributes();
  module.register_module("middle", middle);
  module.define("def forward(self, x):\n  return self.middle.forward(self.t)\n");
  EXPECT_THAT(Described(module, Modes::kTrainAndEval),
              UnorderedElementsAre("changes in place (aten::add_) 'middle.inner.w', a parameter",
                                   "assigns 'middle.inner.n', which is not a buffer",
                                   "changes in place (aten::add_) 'middle.inner.b', a buffer",
                                   // The outer module's argument
                                   "changes in place (aten::add_) 't', which is not a buffer"));
}

TEST(StateChangesTest, TreatsBufferThatIsNoneAsOther) {
  torch::jit::Module module = NewModule();
  module.type()->addAttribute("cache", c10::OptionalType::ofTensor(), /*is_parameter=*/false,
                              /*is_buffer=*/true);
  module.setattr("cache", c10::IValue());
  module.define("def forward(self, x):\n  self.cache = x\n  return x\n");
  EXPECT_THAT(Described(module, Modes::kTrainAndEval),
              ElementsAre("assigns 'cache', which is not a buffer"));
}

TEST(StateChangesTest, IgnoresTrainingCodeInEvaluationMode) {
  const std::string lines = "  if self.training and x.dim() > 1:\n    self.n += 1";
  EXPECT_THAT(Changes(lines), ElementsAre("assigns 'n', which is not a buffer"));
  EXPECT_THAT(Changes(lines, Modes::kEval), IsEmpty());
  EXPECT_THAT(Changes("  if not self.training:\n    self.n += 1", Modes::kEval),
              ElementsAre("assigns 'n', which is not a buffer"));
}

TEST(MayChangeStateInEvalTest, IgnoresTrainingCode) {
  const auto may = [](const std::string& lines) {
    torch::jit::Module module = WithAttributes();
    module.define("def forward(self, x):\n" + lines + "\n  return x\n");
    return MayChangeStateInEval(module);
  };
  EXPECT_FALSE(may("  x = torch.relu_(x + self.w)"));
  EXPECT_FALSE(may("  if self.training:\n    self.b.add_(1)"));
  EXPECT_FALSE(
      may("  x = torch.batch_norm(x, None, None, self.t[0], self.b[0], self.training, "
          "0.1, 1e-5, False)"));
  EXPECT_TRUE(may("  self.b.add_(1)"));
  EXPECT_TRUE(may("  self.b = x"));
  EXPECT_TRUE(may("  self.l.append(x)"));
  EXPECT_TRUE(may("  torch.mul(x, 2, out=self.t[:1])"));
}

// The operator's schema does not declare it.
TEST(StateChangesTest, FindsRunningStatisticsOfBatchNorm) {
  const auto lines = [](const std::string& training) {
    return "  y = torch.batch_norm(x, None, None, self.t[0], self.b[0], " + training +
           ", 0.1, 1e-5, False)";
  };
  const auto both = ElementsAre("changes in place (aten::batch_norm) 't', which is not a buffer",
                                "changes in place (aten::batch_norm) 'b', a buffer");
  EXPECT_THAT(Changes(lines("True")), both);
  EXPECT_THAT(Changes(lines("self.training")), both);
  EXPECT_THAT(Changes(lines("self.training"), Modes::kEval), IsEmpty());
  EXPECT_THAT(Changes(lines("False")), IsEmpty());
  EXPECT_THAT(Changes("  y = torch.instance_norm(x, None, None, self.t[0], None, True, 0.1, "
                      "1e-5, False)"),
              ElementsAre("changes in place (aten::instance_norm) 't', which is not a buffer"));
}

}  // namespace
}  // namespace braid

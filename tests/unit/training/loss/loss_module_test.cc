#include "server/training/loss/loss_module.h"

#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/loss_modules.h"
#include "tests/fakes/status_matchers.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

absl::StatusOr<std::unique_ptr<LossModule>> Load(const std::string& file) {
  return LossModule::Load(file, "losses[1].module");
}

at::Tensor Output() { return at::arange(6, at::kDouble).sin().view({3, 2}).requires_grad_(true); }
at::Tensor Target() { return at::full({3, 2}, 0.25, at::kDouble); }

absl::StatusOr<at::Tensor> Compute(const std::string& body) {
  BRAID_ASSIGN_OR_RETURN(const auto module, Load(LossModuleOf(body)));
  return module->Compute(Output(), Target());
}

TEST(LossModuleTest, GivesValueAndGradient) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto module,
                             Load(LossModuleOf("return ((output - target) ** 2).mean()")));
  const at::Tensor output = Output();
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor loss, module->Compute(output, Target()));
  const at::Tensor leaf = Output();
  const at::Tensor reference = at::mse_loss(leaf, Target());
  EXPECT_TRUE(at::allclose(loss, reference, 1e-15, 0));
  EXPECT_TRUE(at::allclose(torch::autograd::grad({loss}, {output})[0],
                           torch::autograd::grad({reference}, {leaf})[0], 1e-15, 1e-18));
}

TEST(LossModuleTest, OneElementIsALoss) {
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor loss,
                             Compute("return (output - target).sum().reshape([1, 1])"));
  EXPECT_EQ(loss.dim(), 0);
}

TEST(LossModuleTest, RunsInEvaluationMode) {
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor loss,
                             Compute("return output.sum() * (2.0 if self.training else 1.0)"));
  EXPECT_TRUE(at::equal(loss, Output().sum()));
}

TEST(LossModuleTest, TrainsNoParametersOfItsOwn) {
  torch::jit::Module module("Loss");
  module.register_parameter("scale", at::ones({1}, at::kDouble).requires_grad_(true), false);
  module.define("def forward(self, output, target):\n  return self.scale.sum() * target.sum()\n");
  std::ostringstream file;
  module.save(file);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto loaded, Load(file.str()));
  EXPECT_THAT(loaded->Compute(Output(), Target()),
              StatusIs(kFailed, AllOf(HasSubstr("losses[1].module"), HasSubstr("no gradient"))));
}

TEST(LossModuleTest, RefusesWhatIsNoModule) {
  EXPECT_THAT(Load("PK no zip"),
              RefusesField("losses[1].module", HasSubstr("cannot be loaded as TorchScript")));
  const std::string whole = LossModuleOf("return output.sum()");
  EXPECT_THAT(Load(whole.substr(0, whole.size() / 2)),
              RefusesField("losses[1].module", AllOf(HasSubstr("cannot be loaded as TorchScript"),
                                                     Not(HasSubstr("\n")))));
}

TEST(LossModuleTest, RefusesAForwardThatIsNoLoss) {
  EXPECT_THAT(Load(LossModuleFile("def value(self, output, target):\n  return output\n")),
              RefusesField("losses[1].module", HasSubstr("has no forward method")));
  for (const char* method : {"def forward(self, output):\n  return output\n",
                             "def forward(self, output, k: int):\n  return output\n",
                             "def forward(self, output, target, more):\n  return output\n",
                             "def forward(self, output, target):\n  return 1.0\n"}) {
    EXPECT_THAT(Load(LossModuleFile(method)),
                RefusesField("losses[1].module",
                             HasSubstr("expected forward(self, output: Tensor, target: Tensor)")))
        << method;
  }
  EXPECT_THAT(Load(LossModuleFile(
                  "def forward(self, output, target, factor: float = 2.0):\n  return output\n")),
              IsOk());
}

TEST(LossModuleTest, OneThatThrowsSaysWhy) {
  EXPECT_THAT(Compute("return (output @ target).sum()"),
              RefusesField("losses[1].module",
                           AllOf(HasSubstr("the module failed: "),
                                 HasSubstr("mat1 and mat2 shapes"), Not(HasSubstr("\n")))));
  EXPECT_THAT(Compute("assert output.size(0) > 5, 'too few rows'\n  return output.sum()"),
              RefusesField("losses[1].module", HasSubstr("too few rows")));
}

TEST(LossModuleTest, AValueThatIsNoLoss) {
  const auto refuses = [](const std::string& what) {
    return StatusIs(kFailed,
                    AllOf(HasSubstr("losses[1].module: the module returned"), HasSubstr(what)));
  };
  EXPECT_THAT(Compute("return output"), refuses("[3, 2] (expected a floating-point tensor of one"));
  EXPECT_THAT(Compute("return output.argmax()"), refuses("expected a floating-point tensor"));
  EXPECT_THAT(Compute("return target.sum()"), refuses("no gradient"));
  EXPECT_THAT(Compute("return output.detach().sum()"), refuses("no gradient"));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto any,
      Load(LossModuleFile("def forward(self, output, target) -> Any:\n  return 'loss'\n")));
  EXPECT_THAT(any->Compute(Output(), Target()), refuses("a String (expected a tensor"));
}

TEST(LossModuleTest, NeedsNoGradientWhereNoneIsAskedFor) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto module, Load(LossModuleOf("return target.sum()")));
  const c10::AutoGradMode no_grad(false);
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor loss, module->Compute(Output().detach(), Target()));
  EXPECT_EQ(loss.item<double>(), 1.5);
}

TEST(LossModuleTest, AFailureLeavesItUsable) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto module,
      Load(LossModuleOf("assert output.size(0) > 2, 'few'\n  return output.sum()")));
  EXPECT_FALSE(module->Compute(Output().slice(0, 0, 1), Target()).ok());
  EXPECT_THAT(module->Compute(Output(), Target()), IsOk());
}

// A loss of 2 rows whose module has an int `n`, a tensor `t`, a buffer `b` and a parameter `p`.
absl::Status LoadWithState(const std::string& body) {
  torch::jit::Module inner("Inner");
  inner.register_attribute("training", c10::BoolType::get(), true);
  inner.register_attribute("n", c10::IntType::get(), 0);
  inner.define("def forward(self):\n  self.n += 1\n  return self.n\n");
  torch::jit::Module module("Loss");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_module("inner", inner);
  module.register_attribute("t", c10::TensorType::get(), at::zeros({2}));
  module.register_buffer("b", at::zeros({2}));
  module.register_parameter("p", at::zeros({2}), /*is_buffer=*/false);
  module.define("def forward(self, output, target):\n  " + body + "\n  return output.sum()\n");
  std::ostringstream file;
  module.save(file);
  return Load(file.str()).status();
}

TEST(LossModuleTest, RefusesStateOfItsOwn) {
  const auto refuses = [](const std::string& what) {
    return RefusesField("losses[1].module", AllOf(HasSubstr("keeps state: its forward " + what),
                                                  HasSubstr("use a local variable")));
  };
  EXPECT_THAT(LoadWithState("self.t = self.t * 0.9 + output.mean(0)"), refuses("assigns 't'"));
  EXPECT_THAT(LoadWithState("self.b = self.b * 0.9 + output.mean(0)"), refuses("assigns 'b'"));
  EXPECT_THAT(LoadWithState("self.b[0].add_(1)"), refuses("changes in place (aten::add_) 'b'"));
  EXPECT_THAT(LoadWithState("self.t.zero_()"), refuses("changes in place (aten::zero_) 't'"));
  EXPECT_THAT(LoadWithState("self.p.detach().add_(1)"),
              refuses("changes in place (aten::add_) 'p'"));
  EXPECT_THAT(LoadWithState("n = self.inner.forward()"), refuses("assigns 'inner.n'"));
}

TEST(LossModuleTest, MayReadWhatItHoldsAndChangeWhatItIsGiven) {
  EXPECT_THAT(LoadWithState("target.mul_(2)\n  a = self.b + self.t * self.p\n  a.add_(1)"), IsOk());
}

// A perceptual loss contains a network like this; loss modules always run in evaluation mode.
TEST(LossModuleTest, MayChangeStateInTrainingModeThatItIsNeverIn) {
  EXPECT_THAT(LoadWithState("if self.training:\n    self.b.add_(1)\n"
                            "  y = torch.batch_norm(output, None, None, self.b, self.b, "
                            "self.training, 0.1, 1e-5, False)"),
              IsOk());
}

// Each has a copy of its own, and all take from and give back to the same ones.
TEST(LossModuleTest, CallsAtOnceDoNotMeet) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto module,
                             Load(LossModuleOf("rows = 0\n"
                                               "  for i in range(output.size(0)):\n"
                                               "    rows = rows + 1\n"
                                               "  return output.sum() * rows")));
  constexpr int kCalls = 60;
  std::vector<int> right(4);
  std::latch start(static_cast<std::ptrdiff_t>(right.size()));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&, t] {
      const int64_t rows = 2000 + 500 * static_cast<int64_t>(t);
      const at::Tensor output = at::ones({rows, 1}, at::kDouble).requires_grad_(true);
      start.arrive_and_wait();
      for (int call = 0; call < kCalls; ++call) {
        const absl::StatusOr<at::Tensor> loss = module->Compute(output, output);
        const auto expected = static_cast<double>(rows * rows);
        right[t] += loss.ok() && loss->item<double>() == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(right, Each(kCalls));
}

}  // namespace
}  // namespace braid

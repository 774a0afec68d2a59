#include "server/devices/autocast.h"

#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/autocast_mode.h"
#include "gtest/gtest.h"
#include "server/devices/torch_settings.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {
namespace {

// Two layers that share a weight.
torch::jit::Module TwiceTheSameLayer() {
  torch::jit::Module module("Made");
  const auto parameter = [&](const char* name, const at::Tensor& value) {
    module.register_parameter(name, value.requires_grad_(true), /*is_buffer=*/false);
  };
  parameter("w", (at::arange(64, at::kFloat) * 0.7).sin().view({8, 8}));
  parameter("b", (at::arange(8, at::kFloat) * 1.1).cos());
  module.define(
      "def forward(self, x):\n"
      "  h = torch.relu(torch.linear(x, self.w, self.b))\n"
      "  return torch.linear(h, self.w)\n");
  return module;
}

at::Tensor Input() { return (at::arange(40, at::kFloat) * 0.3).sin().view({5, 8}); }

struct Result {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

Result RunAutocast(torch::jit::Module module, std::optional<at::ScalarType> type) {
  Result result;
  {
    const AutocastGuard guard(c10::kCPU, type);
    result.output = module.forward({Input()}).toTensor();
  }
  result.gradients = torch::autograd::grad(
      {result.output}, {module.attr("w").toTensor(), module.attr("b").toTensor()},
      {at::ones_like(result.output)});
  return result;
}

// Same, with explicit casts.
Result CastByHand(const torch::jit::Module& module, at::ScalarType type) {
  const at::Tensor w = module.attr("w").toTensor();
  const at::Tensor b = module.attr("b").toTensor();
  const at::Tensor h = at::relu(at::linear(Input().to(type), w.to(type), b.to(type)));
  Result result{at::linear(h, w.to(type)), {}};
  result.gradients = torch::autograd::grad({result.output}, {w, b}, {at::ones_like(result.output)});
  return result;
}

void ExpectSame(const Result& a, const Result& b) {
  EXPECT_EQ(a.output.scalar_type(), b.output.scalar_type());
  EXPECT_TRUE(at::equal(a.output, b.output));
  for (size_t g = 0; g < a.gradients.size(); ++g) {
    EXPECT_EQ(a.gradients[g].scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(a.gradients[g], b.gradients[g])) << "gradient " << g;
  }
}

// Sets the thread up like a worker's.
void OnAThread(const std::function<void()>& work) {
  std::thread([&] {
    SetUpWorkerThread(/*threads=*/1);
    work();
  }).join();
}

TEST(AutocastGuardTest, ComputesInTheTypeWithFloatGradients) {
  OnAThread([] {
    const torch::jit::Module module = TwiceTheSameLayer();
    const Result result = RunAutocast(module, at::kBFloat16);
    EXPECT_EQ(result.output.scalar_type(), at::kBFloat16);
    ExpectSame(result, CastByHand(module, at::kBFloat16));
  });
}

TEST(AutocastGuardTest, EachGuardHasItsType) {
  OnAThread([] {
    const torch::jit::Module module = TwiceTheSameLayer();
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kBFloat16}) {
      ExpectSame(RunAutocast(module, type), CastByHand(module, type));
    }
    ExpectSame(RunAutocast(module, std::nullopt), CastByHand(module, at::kFloat));
  });
}

TEST(AutocastGuardTest, CastsChangedWeightsAgain) {
  OnAThread([] {
    const torch::jit::Module module = TwiceTheSameLayer();
    RunAutocast(module, at::kBFloat16);
    {
      const c10::AutoGradMode no_grad(false);
      module.attr("w").toTensor().mul_(2);
    }
    ExpectSame(RunAutocast(module, at::kBFloat16), CastByHand(module, at::kBFloat16));
  });
}

TEST(AutocastGuardTest, RestoresThePreviousSettings) {
  const bool cache = at::autocast::is_autocast_cache_enabled();
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const AutocastGuard outer(c10::kCPU, at::kHalf);
    {
      const AutocastGuard inner(c10::kCPU, at::kBFloat16);
      EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
    }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), type);
  EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), cache);
}

TEST(AutocastGuardTest, RestoresAfterAnException) {
  const auto fail = [] {
    const AutocastGuard guard(c10::kCPU, at::kBFloat16);
    throw std::runtime_error("out of memory");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(AutocastGuardTest, DoesNothingWithoutAType) {
  const AutocastGuard outer(c10::kCPU, at::kHalf);
  const AutocastGuard none(c10::kCPU, std::nullopt);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
}

TEST(AutocastGuardTest, DoesNotAffectOtherThreadsAndDevices) {
  const AutocastGuard guard(c10::kCPU, at::kBFloat16);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  OnAThread([] {
    const torch::jit::Module module = TwiceTheSameLayer();
    ExpectSame(RunAutocast(module, std::nullopt), CastByHand(module, at::kFloat));
  });
}

}  // namespace
}  // namespace braid

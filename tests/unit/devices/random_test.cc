#include "server/devices/random.h"

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/CPUGeneratorImpl.h"
#include "gtest/gtest.h"
#include "server/devices/torch_settings.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {
namespace {

// Module that returns `expression` of its input x.
torch::jit::Module Returning(const std::string& expression) {
  torch::jit::Module module("Made");
  module.define("def forward(self, x):\n  return " + expression + "\n");
  return module;
}

torch::jit::Module Dropout() { return Returning("torch.dropout(x, 0.5, True)"); }

at::Tensor Draw(torch::jit::Module module) {
  return module.forward({at::full({200, 7}, 0.5)}).toTensor();
}

at::Tensor DrawSeeded(const torch::jit::Module& module, uint64_t seed) {
  const RandomSeedGuard guard(c10::kCPU, seed);
  return Draw(module);
}

// Sets the thread up like a worker's.
void OnAThread(const std::function<void()>& work) {
  std::thread([&] {
    SetUpWorkerThread(/*threads=*/1);
    work();
  }).join();
}

// Default generator of kernels, like that of a GPU.
at::Generator SharedGenerator() { return at::detail::getDefaultCPUGenerator(); }

at::Tensor ProcessState() { return at::detail::getDefaultCPUGenerator().get_state(); }

TEST(RandomSeedGuardTest, ConcurrentThreadsDrawTheSameAsAlone) {
  constexpr size_t kThreads = 4;
  std::vector<torch::jit::Module> modules;
  std::vector<at::Tensor> alone(kThreads);
  for (size_t t = 0; t < kThreads; ++t) {
    modules.push_back(Dropout());
    OnAThread([&] { alone[t] = DrawSeeded(modules[t], t); });
  }
  EXPECT_FALSE(at::equal(alone[0], alone[1]));
  for (int run = 0; run < 20; ++run) {
    std::vector<at::Tensor> together(kThreads);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        SetUpWorkerThread(/*threads=*/1);
        together[t] = DrawSeeded(modules[t], t);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (size_t t = 0; t < kThreads; ++t) {
      EXPECT_TRUE(at::equal(together[t], alone[t])) << "run " << run << ", thread " << t;
    }
  }
}

TEST(RandomSeedGuardTest, DrawsDependOnlyOnTheSeed) {
  const torch::jit::Module module = Dropout();
  const at::Tensor first = DrawSeeded(module, 1);
  EXPECT_TRUE(at::equal(DrawSeeded(module, 1), first));
  EXPECT_FALSE(at::equal(DrawSeeded(module, 2), first));
}

TEST(RandomSeedGuardTest, SuccessiveDrawsDiffer) {
  const torch::jit::Module module = Dropout();
  const RandomSeedGuard guard(c10::kCPU, 1);
  const at::Tensor first = Draw(module);
  EXPECT_FALSE(at::equal(Draw(module), first));
}

TEST(RandomSeedGuardTest, UsesTheDefaultGeneratorWithoutAGuard) {
  const torch::jit::Module module = Dropout();
  at::manual_seed(5);
  const at::Tensor first = Draw(module);
  const at::Tensor second = Draw(module);
  at::manual_seed(5);
  EXPECT_TRUE(at::equal(Draw(module), first));
  DrawSeeded(module, 1);  // between two draws; changes neither
  EXPECT_TRUE(at::equal(Draw(module), second));
}

TEST(RandomSeedGuardTest, AnInnerGuardDoesNotAdvanceTheOuterOne) {
  const torch::jit::Module module = Dropout();
  std::optional<RandomSeedGuard> alone(std::in_place, c10::kCPU, 1);
  const at::Tensor first = Draw(module);
  const at::Tensor second = Draw(module);
  alone.reset();
  const RandomSeedGuard outer(c10::kCPU, 1);
  EXPECT_TRUE(at::equal(Draw(module), first));
  EXPECT_FALSE(at::equal(DrawSeeded(module, 2), second));
  EXPECT_TRUE(at::equal(Draw(module), second));
}

TEST(RandomSeedGuardTest, DoesNotAffectOtherThreads) {
  const torch::jit::Module module = Dropout();
  const RandomSeedGuard guard(c10::kCPU, 1);
  at::manual_seed(5);
  at::Tensor here;
  OnAThread([&] { here = Draw(module); });
  at::manual_seed(5);
  OnAThread([&] { EXPECT_TRUE(at::equal(Draw(module), here)); });
}

TEST(RandomSeedGuardTest, UsesAnExplicitGenerator) {
  const auto draw = [] {
    at::Generator generator = at::detail::createCPUGenerator(3);
    return at::empty({50}).uniform_(0, 1, generator);
  };
  const at::Tensor expected = draw();
  const RandomSeedGuard guard(c10::kCPU, 1);
  EXPECT_TRUE(at::equal(draw(), expected));
}

TEST(RandomSeedGuardTest, ThreadsThatShareAGeneratorDrawTheSameAsAlone) {
  constexpr size_t kThreads = 4;
  const auto draw = [](uint64_t seed) {
    const torch::jit::Module module = Dropout();
    const RandomSeedGuard guard(SharedGenerator(), seed);
    std::vector<at::Tensor> draws;
    for (int d = 0; d < 20; ++d) {
      draws.push_back(Draw(module));
    }
    return at::cat(draws);
  };
  std::vector<at::Tensor> alone(kThreads);
  std::vector<at::Tensor> together(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    OnAThread([&] { alone[t] = draw(t); });
  }
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      SetUpWorkerThread(/*threads=*/1);
      together[t] = draw(t);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t t = 0; t < kThreads; ++t) {
    EXPECT_TRUE(at::equal(together[t], alone[t])) << t;
  }
}

// Parameter: a random expression.
class RandomOperatorTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RandomOperatorTest, DrawsOnlyFromTheGuard) {
  const torch::jit::Module module = Returning(GetParam());
  at::manual_seed(5);
  const at::Tensor before = ProcessState();
  const at::Tensor first = DrawSeeded(module, 1);
  EXPECT_TRUE(at::equal(ProcessState(), before)) << "drew from the process's generator";
  EXPECT_TRUE(at::equal(DrawSeeded(module, 1), first));
  EXPECT_FALSE(at::equal(DrawSeeded(module, 2), first));
}

TEST_P(RandomOperatorTest, DrawsOnlyFromTheGuardWithGradients) {
  torch::jit::Module module = Returning(GetParam());
  at::manual_seed(5);
  const at::Tensor before = ProcessState();
  const RandomSeedGuard guard(c10::kCPU, 1);
  module.forward({at::full({200, 7}, 0.5).requires_grad_(true)});
  EXPECT_TRUE(at::equal(ProcessState(), before)) << "drew from the process's generator";
}

TEST_P(RandomOperatorTest, OtherGuardsDoNotShiftDrawsFromASharedGenerator) {
  const torch::jit::Module module = Returning(GetParam());
  const auto draw_twice = [&](const std::function<void()>& between) {
    const RandomSeedGuard guard(SharedGenerator(), 1);
    const at::Tensor first = Draw(module);
    between();
    return std::make_pair(first, Draw(module));
  };
  const auto alone = draw_twice([] {});
  EXPECT_FALSE(at::equal(alone.first, alone.second));
  const auto shared = draw_twice([&] {
    OnAThread([&] {
      const RandomSeedGuard guard(SharedGenerator(), 2);
      EXPECT_FALSE(at::equal(Draw(module), alone.first));
    });
  });
  EXPECT_TRUE(at::equal(shared.first, alone.first));
  EXPECT_TRUE(at::equal(shared.second, alone.second));
}

INSTANTIATE_TEST_SUITE_P(
    Layers, RandomOperatorTest,
    ::testing::Values("torch.dropout(x, 0.5, True)", "torch.dropout_(x.clone(), 0.5, True)",
                      "torch.native_dropout(x, 0.5, True)[0]",
                      "torch.feature_dropout(x, 0.5, True)", "torch.alpha_dropout(x, 0.5, True)",
                      "torch.feature_alpha_dropout(x, 0.5, True)",
                      "torch.rrelu(-x, 0.1, 0.9, True)", "torch.rrelu_(-x, 0.1, 0.9, True)",
                      "torch.scaled_dot_product_attention(x, x, x, None, 0.5)"));

INSTANTIATE_TEST_SUITE_P(
    Numbers, RandomOperatorTest,
    ::testing::Values("torch.rand([99])", "torch.rand_like(x)", "torch.randn([99])",
                      "torch.randn_like(x)", "torch.randint(1000, [99])",
                      "torch.randint(-1000, 1000, [99])", "torch.randint_like(x, 1000)",
                      "torch.randperm(99)", "torch.normal(x, 1.0)", "torch.normal(0.0, x)",
                      "torch.normal(x, x)", "torch.normal(0.0, 1.0, [99])",
                      "torch.multinomial(x, 3)", "torch.multinomial(x, 30, True)",
                      "torch.bernoulli(x)", "torch.bernoulli(x, 0.5)", "torch.poisson(100 * x)",
                      "torch.binomial(100 * x, x)", "torch._standard_gamma(x)",
                      "torch._sample_dirichlet(x)"));

INSTANTIATE_TEST_SUITE_P(InPlace, RandomOperatorTest,
                         ::testing::Values("x.clone().bernoulli_(0.5)", "x.clone().bernoulli_(x)",
                                           "x.clone().uniform_()", "x.clone().normal_()",
                                           "x.clone().random_()", "x.clone().random_(1000)",
                                           "x.clone().random_(-1000, 1000)",
                                           "x.clone().exponential_()", "x.clone().geometric_(0.1)",
                                           "x.clone().cauchy_()", "x.clone().log_normal_()"));

}  // namespace
}  // namespace braid

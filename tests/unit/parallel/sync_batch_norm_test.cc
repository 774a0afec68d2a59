#include "server/parallel/sync_batch_norm.h"

#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "absl/functional/function_ref.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/jit/api/module.h"
#include "torch/library.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

using Rows = std::vector<int64_t>;

// Irregular values, so that a wrong reduction shows.
at::Tensor Numbers(at::IntArrayRef shape, double step) {
  const int64_t count = c10::multiply_integers(shape);
  return (at::arange(count, at::kDouble) * step).sin().view(shape);
}

// Runs `work(rank)` on the worker of each rank, with a guard, in one group of all ranks.
absl::Status RunSynchronized(size_t ranks, absl::FunctionRef<void(size_t)> work) {
  const WorkerFleet fleet(static_cast<int>(ranks));
  RankGroup all(ranks);
  std::iota(all.begin(), all.end(), 0);
  BatchNormExchange exchange(ranks);
  return RunWorkerGroup(fleet.workers(), {all}, [&](WorkerGroup& worker_group, size_t rank) {
    const SyncBatchNormGuard guard(worker_group, /*group=*/0, rank, /*member=*/rank, exchange);
    work(rank);
    return absl::OkStatus();
  });
}

struct Layer {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor mean;
  at::Tensor variance;
  double momentum = 0.3;

  Layer Clone() const {
    const auto copy = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.detach().clone().requires_grad_(tensor.requires_grad())
                              : tensor;
    };
    return {copy(weight), copy(bias), copy(mean), copy(variance), momentum};
  }
  at::Tensor operator()(const at::Tensor& x, bool training = true) const {
    return at::batch_norm(x, weight, bias, mean, variance, training, momentum, /*eps=*/1e-5,
                          /*cudnn_enabled=*/false);
  }
};

Layer MakeLayer(int64_t channels, at::ScalarType type = at::kDouble) {
  const auto make = [&](double step) { return Numbers({channels}, step).to(type); };
  return {make(0.7).requires_grad_(true), make(1.1).requires_grad_(true), make(1.3), make(1.7) + 2};
}

struct Outcome {
  at::Tensor output;
  at::Tensor input_gradient;
  std::vector<at::Tensor> gradients;  // of weight and bias, if they exist
  Layer layer;                        // after the pass
};

// Runs a forward and backward pass of a copy of `layer`.
Outcome Step(const Layer& layer, const at::Tensor& input, const at::Tensor& output_gradient) {
  Outcome outcome;
  outcome.layer = layer.Clone();
  const at::Tensor x = input.detach().requires_grad_(true);
  std::vector<at::Tensor> leaves = {x};
  for (const at::Tensor& parameter : {outcome.layer.weight, outcome.layer.bias}) {
    if (parameter.defined()) {
      leaves.push_back(parameter);
    }
  }
  const at::Tensor y = outcome.layer(x);
  const auto gradients = torch::autograd::grad({y}, leaves, {output_gradient});
  outcome.output = y.detach();
  outcome.input_gradient = gradients.front();
  outcome.gradients.assign(gradients.begin() + 1, gradients.end());
  return outcome;
}

// Runs it on ranks with `rows` rows each and concatenates the results. Checks that all ranks have
// the same running statistics.
Outcome SynchronizedStep(const Layer& layer, const at::Tensor& input,
                         const at::Tensor& output_gradient, const Rows& rows) {
  const auto inputs = input.split_with_sizes(rows);
  const auto gradients = output_gradient.split_with_sizes(rows);
  std::vector<Outcome> of_rank(rows.size());
  EXPECT_THAT(RunSynchronized(rows.size(),
                              [&](size_t r) { of_rank[r] = Step(layer, inputs[r], gradients[r]); }),
              IsOk());
  Outcome whole = of_rank.front();
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> input_gradients;
  for (const Outcome& one : of_rank) {
    outputs.push_back(one.output);
    input_gradients.push_back(one.input_gradient);
    if (layer.mean.defined()) {
      EXPECT_TRUE(at::equal(one.layer.mean, whole.layer.mean));
      EXPECT_TRUE(at::equal(one.layer.variance, whole.layer.variance));
    }
  }
  whole.output = at::cat(outputs);
  whole.input_gradient = at::cat(input_gradients);
  for (size_t g = 0; g < whole.gradients.size(); ++g) {
    whole.gradients[g] = at::zeros_like(whole.gradients[g]);
    for (const Outcome& one : of_rank) {
      whole.gradients[g] += one.gradients[g];
    }
  }
  return whole;
}

void ExpectClose(const char* name, const at::Tensor& a, const at::Tensor& b, double tolerance) {
  ASSERT_EQ(a.defined(), b.defined()) << name;
  if (a.defined()) {
    EXPECT_EQ(a.scalar_type(), b.scalar_type()) << name;
    EXPECT_TRUE(at::allclose(a, b, tolerance, tolerance))
        << name << " differs by " << (a - b).abs().max().item<double>();
  }
}

void ExpectClose(const Outcome& a, const Outcome& b, double tolerance) {
  ExpectClose("output", a.output, b.output, tolerance);
  ExpectClose("input gradient", a.input_gradient, b.input_gradient, tolerance);
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t g = 0; g < a.gradients.size(); ++g) {
    ExpectClose("parameter gradient", a.gradients[g], b.gradients[g], tolerance);
  }
  ExpectClose("running mean", a.layer.mean, b.layer.mean, tolerance);
  ExpectClose("running variance", a.layer.variance, b.layer.variance, tolerance);
}

// rows: rows of each rank. shape: shape of the input; its first dimension is ignored.
void ExpectTheWholeBatchs(const Layer& layer, const Rows& rows, std::vector<int64_t> shape) {
  shape[0] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const at::Tensor input = Numbers(shape, 0.9) * 3 + 1;
  const at::Tensor gradient = Numbers(shape, 1.9);
  ExpectClose(SynchronizedStep(layer, input, gradient, rows), Step(layer, input, gradient), 1e-12);
}

TEST(SyncBatchNormTest, MatchesWholeBatchForAnyNumberOfRanks) {
  for (const Rows& rows : {Rows{6}, Rows{3, 3}, Rows{5, 2}, Rows{4, 4, 1}, Rows{2, 2, 2, 1}}) {
    ExpectTheWholeBatchs(MakeLayer(4), rows, {0, 4, 3, 5});
  }
}

TEST(SyncBatchNormTest, SupportsTwoToFiveDimensions) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 4}, {0, 4, 6}, {0, 4, 3, 2}, {0, 4, 3, 2, 2}}) {
    ExpectTheWholeBatchs(MakeLayer(4), {3, 2}, shape);
  }
}

TEST(SyncBatchNormTest, SupportsMembersWithOneRowOrNone) {
  ExpectTheWholeBatchs(MakeLayer(4), {1, 1}, {0, 4});
  ExpectTheWholeBatchs(MakeLayer(4), {3, 0, 2}, {0, 4});
  ExpectTheWholeBatchs(MakeLayer(4), {0, 3}, {0, 4, 3, 5});
}

TEST(SyncBatchNormTest, ReadsOneRowInAnyLayout) {
  // The layout of the gradient of `y.flatten(2).transpose(1, 2)`.
  const auto tokens = [](double step) {
    return Numbers({1, 6, 4}, step).as_strided({1, 4, 2, 3}, {4, 1, 12, 4});
  };
  const Layer layer = MakeLayer(4);
  for (const at::Tensor& input : {tokens(0.9), tokens(0.9).contiguous()}) {
    for (const at::Tensor& gradient : {tokens(1.9), tokens(1.9).contiguous()}) {
      ExpectClose(SynchronizedStep(layer, input, gradient, {1}),
                  Step(layer, input.contiguous(), gradient.contiguous()), 1e-12);
    }
  }
}

TEST(SyncBatchNormTest, SupportsMissingParametersAndStatistics) {
  Layer layer = MakeLayer(4);
  layer.weight = at::Tensor();
  ExpectTheWholeBatchs(layer, {3, 2}, {0, 4, 3});
  layer.bias = at::Tensor();
  ExpectTheWholeBatchs(layer, {3, 2}, {0, 4, 3});
  layer.mean = at::Tensor();
  layer.variance = at::Tensor();
  ExpectTheWholeBatchs(layer, {3, 2}, {0, 4, 3});
}

TEST(SyncBatchNormTest, AppliesMomentum) {
  Layer layer = MakeLayer(4);
  layer.momentum = 1;
  ExpectTheWholeBatchs(layer, {3, 2}, {0, 4, 3});
}

TEST(SyncBatchNormTest, KeepsChannelsLast) {
  const Layer layer = MakeLayer(4);
  const auto channels_last = [](const at::Tensor& tensor) {
    return tensor.contiguous(at::MemoryFormat::ChannelsLast);
  };
  const at::Tensor input = channels_last(Numbers({5, 4, 3, 6}, 0.9));
  const at::Tensor gradient = channels_last(Numbers({5, 4, 3, 6}, 1.9));
  const Outcome outcome = SynchronizedStep(layer, input, gradient, {3, 2});
  EXPECT_TRUE(outcome.output.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(outcome.input_gradient.is_contiguous(at::MemoryFormat::ChannelsLast));
  ExpectClose(outcome, Step(layer, input, gradient), 1e-12);
}

TEST(SyncBatchNormTest, KeepsPrecisionForLargeMeans) {
  const Layer layer = MakeLayer(4, at::kFloat);
  const at::Tensor input = (Numbers({40, 4}, 0.9) + 1000).to(at::kFloat);
  const at::Tensor gradient = Numbers({40, 4}, 1.9).to(at::kFloat);
  const Outcome outcome = SynchronizedStep(layer, input, gradient, {13, 13, 14});
  const Outcome expected = Step(MakeLayer(4), input.to(at::kDouble), gradient.to(at::kDouble));
  EXPECT_TRUE(at::allclose(outcome.layer.variance.to(at::kDouble), expected.layer.variance, 1e-5));
  EXPECT_TRUE(
      at::allclose(outcome.input_gradient.to(at::kDouble), expected.input_gradient, 1e-3, 1e-3));
}

TEST(SyncBatchNormTest, UsesFloatStatisticsForHalfPrecision) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Layer layer = MakeLayer(4, at::kFloat);
    const at::Tensor input = Numbers({7, 4, 5}, 0.9).to(type);
    const at::Tensor gradient = Numbers({7, 4, 5}, 1.9).to(type);
    const Outcome outcome = SynchronizedStep(layer, input, gradient, {4, 3});
    const Outcome expected = Step(layer, input, gradient);
    ExpectClose(outcome, expected, 2e-2);
    ExpectClose("running mean", outcome.layer.mean, expected.layer.mean, 1e-6);
    ExpectClose("running variance", outcome.layer.variance, expected.layer.variance, 1e-6);
  }
}

TEST(SyncBatchNormTest, RejectsOneValuePerChannel) {
  EXPECT_THAT(RunSynchronized(2,
                              [](size_t rank) {
                                MakeLayer(4)(Numbers({rank == 0 ? 1 : 0, 4}, 0.9));
                              }),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("Expected more than 1 value per channel when training")));
}

TEST(SyncBatchNormTest, RejectsWrongNumberOfChannels) {
  EXPECT_THAT(
      RunSynchronized(2,
                      [](size_t) {
                        MakeLayer(4)(Numbers({3, 5}, 0.9));
                      }),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("weight should contain 5 elements not 4")));
}

TEST(SyncBatchNormTest, DoesNotChangeEvaluation) {
  const Layer layer = MakeLayer(4);
  const at::Tensor input = Numbers({6, 4, 3}, 0.9);
  const at::Tensor expected = layer(input, /*training=*/false);
  EXPECT_THAT(RunSynchronized(2,
                              [&](size_t rank) {
                                // Any number of times: it does not wait for other ranks.
                                for (size_t run = 0; run <= rank; ++run) {
                                  EXPECT_TRUE(at::equal(layer(input, false), expected));
                                }
                              }),
              IsOk());
}

TEST(SyncBatchNormTest, DoesNotSynchronizeWithoutGuard) {
  const Layer layer = MakeLayer(4);
  const at::Tensor input = Numbers({6, 4, 3}, 0.9);
  const at::Tensor gradient = Numbers({6, 4, 3}, 1.9);
  const Outcome outcome = Step(layer, input, gradient);
  Layer expected = layer.Clone();
  const auto [output, mean, invstd] =
      at::native_batch_norm(input, expected.weight, expected.bias, expected.mean, expected.variance,
                            /*training=*/true, expected.momentum, 1e-5);
  EXPECT_TRUE(at::equal(outcome.output, output));
  EXPECT_TRUE(at::equal(outcome.layer.mean, expected.mean));
  EXPECT_TRUE(at::equal(outcome.layer.variance, expected.variance));
}

TEST(SyncBatchNormTest, DoesNotSynchronizeInstanceNorm) {
  const at::Tensor input = Numbers({6, 4, 3}, 0.9);
  const auto instance_norm = [&] {
    return at::instance_norm(input, {}, {}, {}, {}, /*use_input_stats=*/true, 0.1, 1e-5, false);
  };
  const at::Tensor expected = instance_norm();
  EXPECT_THAT(
      RunSynchronized(2, [&](size_t) { EXPECT_TRUE(at::equal(instance_norm(), expected)); }),
      IsOk());
}

TEST(SyncBatchNormTest, DoesNotSynchronizeGradientOfInstanceNorm) {
  const at::Tensor gradient = Numbers({6, 4, 3}, 1.9);
  const auto input_gradient = [&](double offset) {
    const at::Tensor input = Numbers({6, 4, 3}, 0.9 + offset).requires_grad_(true);
    const at::Tensor output =
        at::instance_norm(input, {}, {}, {}, {}, /*use_input_stats=*/true, 0.1, 1e-5, false);
    return torch::autograd::grad({output}, {input}, {gradient}).front();
  };
  const std::vector<at::Tensor> expected = {input_gradient(0), input_gradient(1)};
  EXPECT_THAT(RunSynchronized(2,
                              [&](size_t rank) {
                                EXPECT_TRUE(at::equal(input_gradient(static_cast<double>(rank)),
                                                      expected[rank]));
                              }),
              IsOk());
}

TEST(SyncBatchNormTest, FailureOfARankEndsTheOthers) {
  const Layer layer = MakeLayer(4);
  EXPECT_THAT(RunSynchronized(3,
                              [&](size_t rank) {
                                const at::Tensor y = layer.Clone()(Numbers({3, 4}, 0.9));
                                if (rank == 1) {
                                  throw std::runtime_error("out of luck");
                                }
                                layer.Clone()(y);
                              }),
              StatusIs(absl::StatusCode::kInternal, ::testing::StrEq("out of luck")));
}

TEST(SyncBatchNormTest, DetectsRankAtAnotherLayer) {
  const Layer layer = MakeLayer(4);
  EXPECT_THAT(RunSynchronized(2,
                              [&](size_t rank) {
                                for (size_t l = 0; l <= rank; ++l) {
                                  layer.Clone()(Numbers({3, 4}, 0.9));
                                }
                              }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("different batch norm layers")));
  EXPECT_THAT(RunSynchronized(2,
                              [&](size_t rank) {
                                const auto channels = static_cast<int64_t>(rank + 1);
                                MakeLayer(channels)(Numbers({3, channels}, 0.9));
                              }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("different batch norm layers")));
}

TEST(SyncBatchNormTest, RejectsGradientOutsideOfTheGuard) {
  const Layer layer = MakeLayer(4);
  at::Tensor y;
  EXPECT_THAT(RunSynchronized(1,
                              [&](size_t) {
                                y = layer(Numbers({3, 4}, 0.9).requires_grad_(true)).sum();
                              }),
              IsOk());
  EXPECT_THAT([&] { y.backward(); },
              ::testing::ThrowsMessage<c10::Error>(HasSubstr("synchronized batch norm")));
}

TEST(SyncBatchNormTest, RejectsSecondDerivative) {
  const Layer layer = MakeLayer(4);
  EXPECT_THAT(RunSynchronized(1,
                              [&](size_t) {
                                const at::Tensor x = Numbers({3, 4}, 0.9).requires_grad_(true);
                                torch::autograd::grad({layer(x).sum()}, {x}, {},
                                                      /*retain_graph=*/true,
                                                      /*create_graph=*/true);
                              }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no second derivative")));
}

constexpr c10::DispatchKey kGpuRules = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Checks the requirements of LibTorch's GPU kernel and calls the CPU kernel.
std::tuple<at::Tensor, at::Tensor, at::Tensor> BackwardByGpuRules(
    c10::DispatchKeySet keys, const at::Tensor& gradient, const at::Tensor& input,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, const std::optional<at::Tensor>& save_mean,
    const std::optional<at::Tensor>& save_invstd, bool train, double eps,
    std::array<bool, 3> output_mask) {
  TORCH_CHECK(save_mean && save_mean->defined(), "save_mean should always be defined");
  TORCH_CHECK(save_invstd && save_invstd->defined(), "save_invstd should always be defined");
  // The GPU kernel uses these statistics, the CPU kernel the running ones.
  TORCH_CHECK(at::allclose(*save_mean, *running_mean));
  TORCH_CHECK(at::allclose(*save_invstd, (*running_var + eps).rsqrt()));
  return at::_ops::native_batch_norm_backward::redispatch(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kGpuRules), gradient, input,
      weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask);
}

TEST(SyncBatchNormTest, PassesSavedStatisticsToBackwardKernel) {
  const Layer layer = MakeLayer(4);
  const at::Tensor input = Numbers({3, 4, 5}, 0.9);
  const at::Tensor gradient = Numbers({3, 4, 5}, 1.9);
  EXPECT_THAT(RunSynchronized(2,
                              [&](size_t) {
                                const c10::impl::IncludeDispatchKeyGuard rules(kGpuRules);
                                Step(layer, input, gradient);
                              }),
              IsOk());
}

// Two convolutions, each with a batch norm.
torch::jit::Module ConvNet() {
  torch::jit::Module module("Made");
  module.register_attribute("training", c10::BoolType::get(), true);
  const auto add = [&](const std::string& name, const at::Tensor& value, bool is_buffer) {
    module.register_parameter(name, value.requires_grad_(!is_buffer), is_buffer);
  };
  for (const std::string layer : {"1", "2"}) {
    add("c" + layer, Numbers({3, layer == "1" ? 2 : 3, 3, 3}, 0.8), /*is_buffer=*/false);
    add("w" + layer, Numbers({3}, 0.7) + 1, /*is_buffer=*/false);
    add("b" + layer, Numbers({3}, 1.1), /*is_buffer=*/false);
    add("m" + layer, at::zeros({3}, at::kDouble), /*is_buffer=*/true);
    add("v" + layer, at::ones({3}, at::kDouble), /*is_buffer=*/true);
  }
  module.define(R"(
def forward(self, x):
  x = torch.conv2d(x, self.c1, padding=[1, 1])
  x = torch.batch_norm(x, self.w1, self.b1, self.m1, self.v1, self.training, 0.1, 1e-5, False)
  x = torch.conv2d(torch.relu(x), self.c2)
  x = torch.batch_norm(x, self.w2, self.b2, self.m2, self.v2, self.training, 0.1, 1e-5, False)
  return torch.relu(x).mean([2, 3])
)");
  return module;
}

TEST(SyncBatchNormTest, ScriptWithTwoLayersTrainsAsOnTheWholeBatch) {
  const at::Tensor input = Numbers({7, 2, 6, 6}, 0.9);
  const auto step = [](torch::jit::Module& module, const at::Tensor& x) {
    const at::Tensor y = module.forward({x}).toTensor();
    (y * Numbers({1, 3}, 1.9)).sum().backward();
    return y.detach();
  };
  torch::jit::Module reference = ConvNet();
  const at::Tensor expected = step(reference, input);
  std::vector<torch::jit::Module> replicas = {ConvNet(), ConvNet(), ConvNet()};
  const auto chunks = input.split_with_sizes({3, 3, 1});
  std::vector<at::Tensor> outputs(3);
  EXPECT_THAT(
      RunSynchronized(3, [&](size_t rank) { outputs[rank] = step(replicas[rank], chunks[rank]); }),
      IsOk());
  ExpectClose("output", at::cat(outputs), expected, 1e-12);
  for (const auto& parameter : reference.named_parameters()) {
    at::Tensor sum = at::zeros_like(parameter.value);
    for (const torch::jit::Module& replica : replicas) {
      sum += replica.attr(parameter.name).toTensor().grad();
    }
    ExpectClose(parameter.name.c_str(), sum, parameter.value.grad(), 1e-12);
  }
  for (const auto& buffer : reference.named_buffers()) {
    for (const torch::jit::Module& replica : replicas) {
      ExpectClose(buffer.name.c_str(), replica.attr(buffer.name).toTensor(), buffer.value, 1e-12);
    }
  }
}

}  // namespace
}  // namespace braid

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("native_batch_norm_backward", &braid::BackwardByGpuRules);
}

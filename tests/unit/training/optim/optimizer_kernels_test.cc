// Updates of datatypes for which LibTorch's fused kernels are not to be relied on.
#include "server/training/optim/optimizer_kernels.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "torch/optim/sgd.h"

namespace braid {
namespace {

struct Sgd {
  double momentum = 0;
  double weight_decay = 0;
  double dampening = 0;
  bool nesterov = false;
};

class ReducedSgdTest : public ::testing::TestWithParam<std::tuple<at::ScalarType, Sgd, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(
    All, ReducedSgdTest,
    ::testing::Combine(::testing::Values(at::kHalf, at::kBFloat16, at::kFloat),
                       ::testing::Values(Sgd{}, Sgd{0.9, 0, 0, false}, Sgd{0, 0.1, 0, false},
                                         Sgd{0.9, 0.1, 0.2, false}, Sgd{0.9, 0.1, 0, true}),
                       // Whole vectors, and some more.
                       ::testing::Values(64, 1024, 1000)));

TEST_P(ReducedSgdTest, IsTorchs) {
  const auto& [type, options, size] = GetParam();
  const at::Tensor value = at::arange(size, at::kFloat).cos().to(type);
  const at::Tensor reference = value.clone().requires_grad_();
  torch::optim::SGD optimizer({reference}, torch::optim::SGDOptions(0.5)
                                               .momentum(options.momentum)
                                               .weight_decay(options.weight_decay)
                                               .dampening(options.dampening)
                                               .nesterov(options.nesterov));
  UpdateSlices slices;
  slices.values = {value};
  slices.state["momentum_buffer"] = {at::zeros_like(value)};
  SgdSpec spec;
  spec.dampening = options.dampening;
  spec.nesterov = options.nesterov;
  for (int64_t update = 0; update < 4; ++update) {
    const at::Tensor gradient = (at::arange(size, at::kFloat) + 7 * update).sin().to(type);
    slices.gradients = {gradient};
    reference.mutable_grad() = gradient.clone();
    optimizer.step();
    UpdateInPlace(spec, {0.5, options.weight_decay, options.momentum}, update, slices);
  }
  const double tolerance = type == at::kFloat ? 1e-6 : type == at::kHalf ? 2e-3 : 2e-2;
  EXPECT_TRUE(at::allclose(value, reference, tolerance, tolerance));
  EXPECT_FALSE(at::equal(value.to(at::kFloat), at::arange(size, at::kFloat).cos()));
}

}  // namespace
}  // namespace braid

#include "server/kernels/onednn_product.h"

#include "ATen/ATen.h"
#include "c10/core/GradMode.h"
#include "gtest/gtest.h"
#include "tests/fakes/operator_counter.h"

namespace braid {
namespace {

constexpr char kProduct[] = "mkldnn::_linear_pointwise";

class OneDnnProductsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasOneDnn()) {
      GTEST_SKIP() << "LibTorch was built without oneDNN";
    }
    at::manual_seed(0);
    input_ = at::randn({128, 784});
    weight_ = at::randn({512, 784});
    bias_ = at::randn({512});
  }

  static void ExpectClose(const at::Tensor& one, const at::Tensor& other) {
    EXPECT_TRUE(at::allclose(one, other, 1e-4, 1e-3));
  }

  at::Tensor input_;
  at::Tensor weight_;
  at::Tensor bias_;
};

TEST_F(OneDnnProductsTest, AreUsedByExportedGraphs) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor gradient = at::randn({128, 512});
  const at::Tensor output = at::addmm(bias_, input_, weight_.t());
  const at::Tensor of_input = at::mm(gradient, weight_);
  const at::Tensor of_weight = at::mm(gradient.t(), input_);
  const OperatorCounter counter(kProduct);
  const OneDnnProductsGuard guard;
  ExpectClose(at::addmm(bias_, input_, weight_.t()), output);
  ExpectClose(at::mm(gradient, weight_), of_input);
  ExpectClose(at::mm(gradient.t(), input_), of_weight);
  EXPECT_EQ(counter.count(), 3);
}

TEST_F(OneDnnProductsTest, RespectPendingNegations) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor output = at::mm(input_, weight_.t());
  const at::Tensor negated = at::_neg_view(input_);
  const OneDnnProductsGuard guard;
  ExpectClose(at::mm(negated, weight_.t()), -output);
  ExpectClose(at::addmm(at::_neg_view(bias_), negated, weight_.t()), -(output + bias_));
}

TEST_F(OneDnnProductsTest, AreUsedByBackwardPasses) {
  weight_.requires_grad_(true);
  input_.requires_grad_(true);
  at::linear(input_, weight_, bias_).square().sum().backward();
  const at::Tensor of_input = input_.grad().clone();
  const at::Tensor of_weight = weight_.grad().clone();
  input_.mutable_grad().reset();
  weight_.mutable_grad().reset();
  const OperatorCounter counter(kProduct);
  const OneDnnProductsGuard guard;
  at::linear(input_, weight_, bias_).square().sum().backward();
  ExpectClose(input_.grad() / 1000, of_input / 1000);
  ExpectClose(weight_.grad() / 1000, of_weight / 1000);
  EXPECT_EQ(counter.count(), 2);
}

TEST_F(OneDnnProductsTest, AreNotUsedForOtherProducts) {
  const c10::AutoGradMode no_grad(false);
  const OperatorCounter counter(kProduct);
  at::mm(input_, weight_.t());
  const OneDnnProductsGuard guard;
  at::mm(input_.narrow(0, 0, 8), weight_.t());
  at::mm(input_.to(at::kDouble), weight_.t().to(at::kDouble));
  at::addmm(bias_, input_, weight_.t(), /*beta=*/1, /*alpha=*/2);
  at::addmm(bias_.expand({128, 512}), input_, weight_.t());
  at::addmm(at::randn({1}).expand({512}), input_, weight_.t());
  at::mm(at::randn({128, 1568}).slice(1, 0, 1568, 2), weight_.t());
  EXPECT_ANY_THROW(at::mm(input_, weight_));
  EXPECT_ANY_THROW(at::addmm(bias_.narrow(0, 0, 511), input_, weight_.t()));
  EXPECT_EQ(counter.count(), 0);
}

TEST_F(OneDnnProductsTest, EndWithTheGuard) {
  const c10::AutoGradMode no_grad(false);
  { const OneDnnProductsGuard guard; }
  const OperatorCounter counter(kProduct);
  at::mm(input_, weight_.t());
  EXPECT_EQ(counter.count(), 0);
}

}  // namespace
}  // namespace braid

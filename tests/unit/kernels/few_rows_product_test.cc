#include "server/kernels/few_rows_product.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/cleanup/cleanup.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

at::Tensor Multiply(VectorWidth width, const at::Tensor& x, const at::Tensor& w,
                    const at::Tensor& bias) {
  at::Tensor y = at::full({x.size(0), w.size(0)}, 77.0F);
  FewRowsProduct(width, x.const_data_ptr<float>(), w.const_data_ptr<float>(),
                 bias.defined() ? bias.const_data_ptr<float>() : nullptr, y.data_ptr<float>(),
                 x.size(0), w.size(1), w.size(0));
  return y;
}

TEST(FewRowsProductTest, MatchesLinearForAllSizesAndWidths) {
  at::manual_seed(0);
  for (const VectorWidth width : VectorWidths()) {
    for (int64_t rows = 1; rows <= kMaxFewRows; ++rows) {
      for (const int64_t in : {1, 3, 15, 16, 17, 40, 784}) {
        for (const int64_t out : {1, 2, 7, 8, 9, 10, 512}) {
          const at::Tensor x = at::randn({rows, in});
          const at::Tensor w = at::randn({out, in});
          for (const at::Tensor& bias : {at::randn({out}), at::Tensor()}) {
            at::Tensor expected = at::matmul(x.to(at::kDouble), w.to(at::kDouble).t());
            expected = bias.defined() ? expected + bias : expected;
            EXPECT_TRUE(
                at::allclose(Multiply(width, x, w, bias).to(at::kDouble), expected, 1e-4, 1e-4))
                << rows << "x" << in << "x" << out;
          }
        }
      }
    }
  }
}

TEST(FewRowsProductTest, ResultsDoNotDependOnOtherRowsOrThreads) {
  const int threads = at::get_num_threads();
  const absl::Cleanup restore = [threads] { at::set_num_threads(threads); };
  const at::Tensor x = at::randn({kMaxFewRows, 1003});
  const at::Tensor w = at::randn({513, 1003});
  const at::Tensor bias = at::randn({513});
  at::set_num_threads(1);
  const at::Tensor together = FewRowsLinear(x, w, bias);
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    EXPECT_TRUE(at::equal(FewRowsLinear(x, w, bias), together));
    for (int64_t row = 0; row < kMaxFewRows; ++row) {
      EXPECT_TRUE(at::equal(FewRowsLinear(x[row], w, bias), together[row]));
    }
  }
}

TEST(FewRowsProductTest, KeepsNonFiniteValues) {
  at::Tensor x = at::ones({2, 20});
  x[0][3] = std::numeric_limits<float>::infinity();
  x[1][19] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor y = FewRowsLinear(x, at::ones({3, 20}), std::nullopt);
  EXPECT_TRUE(at::isinf(y[0]).all().item<bool>());
  EXPECT_TRUE(at::isnan(y[1]).all().item<bool>());
}

TEST(FewRowsProductTest, SupportsInputsOfAnyRank) {
  const at::Tensor w = at::randn({6, 5});
  const at::Tensor bias = at::randn({6});
  for (const at::Tensor& x : {at::randn({5}), at::randn({2, 2, 5}), at::randn({1, 1, 3, 5})}) {
    ASSERT_TRUE(AreFewRows(x, w, bias));
    const at::Tensor y = FewRowsLinear(x, w, bias);
    const at::Tensor expected = at::linear(x, w, bias);
    EXPECT_EQ(y.sizes(), expected.sizes());
    EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-5));
  }
}

TEST(FewRowsProductTest, AcceptsOnlyContiguousFloats) {
  const at::Tensor w = at::randn({6, 5});
  const at::Tensor bias = at::randn({6});
  EXPECT_TRUE(AreFewRows(at::randn({kMaxFewRows, 5}), w, bias));
  EXPECT_TRUE(AreFewRows(at::randn({1, 5}), w, std::nullopt));
  EXPECT_FALSE(AreFewRows(at::randn({kMaxFewRows + 1, 5}), w, bias));
  EXPECT_FALSE(AreFewRows(at::randn({0, 5}), w, bias));
  EXPECT_FALSE(AreFewRows(at::randn({1, 6}), w, bias));
  EXPECT_FALSE(AreFewRows(at::randn({}), w, bias));
  EXPECT_FALSE(AreFewRows(at::randn({5, 2}).t(), w, bias));
  EXPECT_FALSE(AreFewRows(at::randn({1, 5}), at::randn({5, 6}).t(), bias));
  EXPECT_FALSE(AreFewRows(at::randn({1, 5}), w, at::randn({12}).slice(0, 0, 12, 2)));
  EXPECT_FALSE(AreFewRows(at::randn({1, 5}, at::kDouble), w.to(at::kDouble), std::nullopt));
  EXPECT_FALSE(AreFewRows(at::randn({1, 0}), at::randn({6, 0}), bias));
}

}  // namespace
}  // namespace braid

#include "server/parallel/finite.h"

#include <limits>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/fakes/operator_counter.h"

namespace braid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(RangeShareTest, FindsASingleNonFiniteElement) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor tensor = at::ones({1000}, type);
    EXPECT_LT(RangeShare(tensor), 1e-4) << type;
    for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
      at::Tensor with = tensor.clone();
      with[537] = bad;
      EXPECT_EQ(RangeShare(with), kInfinity) << type << " " << bad;
    }
  }
}

TEST(RangeShareTest, IsRelativeToTheRangeOfTheDatatype) {
  EXPECT_DOUBLE_EQ(RangeShare(at::full({100}, 65504, at::kHalf)), 1);
  EXPECT_DOUBLE_EQ(RangeShare(at::tensor({1.0, -32752.0}).to(at::kHalf)), 0.5);
  const double most = std::numeric_limits<float>::max();
  EXPECT_DOUBLE_EQ(RangeShare(at::tensor({most, -most}).to(at::kFloat)), 1);
}

TEST(RangeShareTest, ReadsTheTensorOnce) {
  const at::Tensor tensor = at::ones({100});
  const OperatorCounter reads("aten::_local_scalar_dense");
  EXPECT_LT(RangeShare(tensor), 1e-30);
  EXPECT_EQ(reads.count(), 2);
}

TEST(RangeShareTest, IsZeroForNoElements) { EXPECT_EQ(RangeShare(at::ones({0})), 0); }

TEST(RangeShareTest, UsesValuesOfSparseTensors) {
  const at::Tensor indices = at::tensor({0, 2}, at::kLong).view({1, 2});
  const at::Tensor good = at::sparse_coo_tensor(indices, at::ones({2, 3}), {4, 3});
  EXPECT_LT(RangeShare(good), 1e-30);
  EXPECT_EQ(RangeShare(good * kInfinity), kInfinity);
}

}  // namespace
}  // namespace braid

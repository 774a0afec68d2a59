#include "server/parallel/finite.h"

#include <limits>

#include "ATen/ATen.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(IsFiniteTest, OneElementThatIsNotIsFound) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor tensor = at::ones({1000}, type);
    EXPECT_TRUE(IsFinite(tensor)) << type;
    for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
      at::Tensor with = tensor.clone();
      with[537] = bad;
      EXPECT_FALSE(IsFinite(with)) << type << " " << bad;
    }
  }
}

TEST(IsFiniteTest, OppositeInfinitiesDoNotCancel) {
  EXPECT_FALSE(IsFinite(at::tensor({kInfinity, -kInfinity})));
}

// The sum of these is beyond float16.
TEST(IsFiniteTest, ManyLargeHalvesAreFinite) {
  EXPECT_TRUE(IsFinite(at::full({100}, 60000, at::kHalf)));
}

TEST(IsFiniteTest, NothingIsFinite) { EXPECT_TRUE(IsFinite(at::ones({0}))); }

TEST(IsFiniteTest, OfASparseTensorTheValuesCount) {
  const at::Tensor indices = at::tensor({0, 2}, at::kLong).view({1, 2});
  const at::Tensor good = at::sparse_coo_tensor(indices, at::ones({2, 3}), {4, 3});
  EXPECT_TRUE(IsFinite(good));
  EXPECT_FALSE(IsFinite(good * kInfinity));
}

}  // namespace
}  // namespace braid

#include "server/parallel/sum_gradients.h"

#include <cmath>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/fakes/puppet_replica.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;

// Parameters of two types, with sizes that are not multiples of the padding.
PuppetReplica FourParameters() {
  return PuppetReplica(nullptr, {{"a", at::zeros({5, 7})},
                                 {"b", at::zeros({3}, at::kDouble)},
                                 {"c", at::zeros({}, at::kFloat)},
                                 {"d", at::zeros({40})}});
}

class SumGradientsTest : public ::testing::TestWithParam<size_t> {
 protected:
  SumGradientsTest() {
    for (const at::Tensor& flat : flat_.gradients()) {
      flat.fill_(100);  // old values
    }
  }
  // Random gradients of each replica. Some parameters are not reached by all, or by any replica.
  std::vector<Tensors> Gradients(size_t replicas) const {
    std::vector<Tensors> gradients(replicas);
    for (size_t r = 0; r < replicas; ++r) {
      for (size_t p = 0; p < replica_.parameters().size(); ++p) {
        const bool reached = p != 1 && (p != 3 || r != 1);
        gradients[r].push_back(reached ? at::randn_like(replica_.parameters()[p].value)
                                       : at::Tensor());
      }
    }
    return gradients;
  }

  PuppetReplica replica_ = FourParameters();
  FlatParameters flat_{replica_};
};
INSTANTIATE_TEST_SUITE_P(Replicas, SumGradientsTest, ::testing::Values(1, 2, 3, 4));

TEST_P(SumGradientsTest, AddsEachSliceInTheOrderOfReplicas) {
  const std::vector<Tensors> gradients = Gradients(GetParam());
  for (size_t b = 0; b < flat_.gradients().size(); ++b) {
    for (size_t part = 0; part < 3; ++part) {
      EXPECT_TRUE(SumGradients(gradients, flat_, b, SliceOf(flat_.gradients()[b], part, 3)));
    }
  }
  for (size_t p = 0; p < replica_.parameters().size(); ++p) {
    at::Tensor expected = at::zeros_like(replica_.parameters()[p].value);
    for (const Tensors& replica : gradients) {
      if (replica[p].defined()) {
        expected += replica[p];
      }
    }
    EXPECT_TRUE(at::equal(flat_.gradient(p), expected)) << p;
  }
}

TEST_P(SumGradientsTest, DoesNotWriteOutsideOfTheSlice) {
  const Slice slice{8, 24};
  EXPECT_TRUE(SumGradients(Gradients(GetParam()), flat_, 0, slice));
  const at::Tensor& flat = flat_.gradients()[0];
  EXPECT_TRUE(flat.narrow(0, 0, 8).eq(100).all().item<bool>());
  EXPECT_TRUE(flat.narrow(0, 24, flat.numel() - 24).eq(100).all().item<bool>());
  EXPECT_TRUE(flat.narrow(0, 8, 16).ne(100).all().item<bool>());
  EXPECT_TRUE(flat_.gradients()[1].eq(100).all().item<bool>());
}

// For each datatype and position, including elements after the last vector or block.
TEST(SumGradientsFiniteTest, DetectsNonFiniteValuesInTheirSlice) {
  constexpr int64_t kSize = 5003;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    PuppetReplica replica(nullptr, {{"w", at::zeros({kSize}, type)}});
    const FlatParameters flat(replica);
    for (const float bad : {INFINITY, -INFINITY, NAN, 1.0F}) {
      for (const int64_t at : {int64_t{0}, int64_t{17}, int64_t{2047}, kSize - 1}) {
        std::vector<Tensors> gradients(2, {at::full({kSize}, 2.0, type)});
        gradients[1][0][at].fill_(bad);
        for (size_t part = 0; part < 2; ++part) {
          const Slice slice = SliceOf(flat.gradients()[0], part, 2);
          const bool inside = slice.begin <= at && at < slice.end;
          EXPECT_EQ(SumGradients(gradients, flat, 0, slice), std::isfinite(bad) || !inside)
              << type << ", " << bad << " at " << at;
        }
      }
    }
  }
}

// Every gradient is finite.
TEST(SumGradientsFiniteTest, DetectsOverflowOfTheSum) {
  PuppetReplica replica(nullptr, {{"w", at::zeros({40})}});
  const FlatParameters flat(replica);
  const std::vector<Tensors> gradients(2, {at::full({40}, 3e38)});
  EXPECT_FALSE(SumGradients(gradients, flat, 0, SliceOf(flat.gradients()[0], 0, 1)));
}

}  // namespace
}  // namespace braid

#include "server/parallel/flat_parameters.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/operator_counter.h"
#include "tests/fakes/puppet_replica.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using Tensors = std::vector<at::Tensor>;

// Parameters of two floating-point types, with sizes that are not multiples of the padding.
PuppetReplica MixedReplica() {
  return PuppetReplica(nullptr, {{"a", at::arange(6, at::kFloat).view({2, 3})},
                                 {"b", at::arange(3, at::kDouble)},
                                 {"c", at::full({}, 7.5, at::kFloat)},
                                 {"d", at::arange(20, at::kDouble).view({4, 5})}});
}

TEST(FlatParametersTest, HasOneBufferPerDtypeInOrderOfFirstUse) {
  PuppetReplica replica = MixedReplica();
  const FlatParameters flat(replica);
  ASSERT_EQ(flat.values().size(), 2);
  EXPECT_EQ(flat.values()[0].scalar_type(), at::kFloat);
  EXPECT_EQ(flat.values()[1].scalar_type(), at::kDouble);
  std::vector<size_t> buffers;
  for (const FlatSlot& slot : flat.slots()) {
    buffers.push_back(slot.buffer);
  }
  EXPECT_THAT(buffers, ElementsAre(0, 1, 0, 1));
}

TEST(FlatParametersTest, AlignsAndPadsSlotsTo64Bytes) {
  PuppetReplica replica = MixedReplica();
  const FlatParameters flat(replica);
  std::vector<int64_t> ends(flat.values().size(), 0);
  for (const FlatSlot& slot : flat.slots()) {
    const at::Tensor& buffer = flat.values()[slot.buffer];
    EXPECT_EQ(slot.offset, ends[slot.buffer]);  // no gaps, no overlaps
    EXPECT_EQ(slot.offset * buffer.element_size() % 64, 0);
    EXPECT_EQ(slot.padded * buffer.element_size() % 64, 0);
    EXPECT_LE(slot.numel, slot.padded);
    EXPECT_LT((slot.padded - slot.numel) * buffer.element_size(), 64);
    ends[slot.buffer] += slot.padded;
  }
  for (size_t b = 0; b < ends.size(); ++b) {
    EXPECT_EQ(flat.values()[b].numel(), ends[b]);
    EXPECT_EQ(flat.gradients()[b].numel(), ends[b]);
  }
}

TEST(FlatParametersTest, ParametersKeepTheirValuesAndBecomeViews) {
  PuppetReplica replica = MixedReplica();
  const PuppetReplica original = MixedReplica();
  const FlatParameters flat(replica);
  for (size_t p = 0; p < replica.parameters().size(); ++p) {
    const at::Tensor& value = replica.parameters()[p].value;
    EXPECT_TRUE(at::equal(value, original.parameters()[p].value));
    EXPECT_TRUE(value.is_alias_of(flat.values()[flat.slots()[p].buffer]));
  }
  flat.values()[0].fill_(2);
  EXPECT_TRUE(at::equal(replica.parameters()[0].value, at::full({2, 3}, 2.0)));
}

class AccumulateTest : public ::testing::Test {
 protected:
  // Flat gradient of parameter `p`.
  at::Tensor Gradient(size_t p) const {
    const FlatSlot& slot = flat_.slots()[p];
    return flat_.gradients()[slot.buffer].narrow(0, slot.offset, slot.numel);
  }
  // Gradients with `value` for the parameters in `reached`.
  Tensors Gradients(double value, const std::vector<bool>& reached) const {
    Tensors gradients;
    for (size_t p = 0; p < reached.size(); ++p) {
      const at::Tensor& parameter = replica_.parameters()[p].value;
      gradients.push_back(reached[p] ? at::full_like(parameter, value) : at::Tensor());
    }
    return gradients;
  }
  bool IsAll(size_t p, double value) const { return Gradient(p).eq(value).all().item<bool>(); }

  PuppetReplica replica_ = MixedReplica();
  FlatParameters flat_{replica_};
};

TEST_F(AccumulateTest, PutAddsSingleGradientsAfterClear) {
  flat_.Accumulate(Gradients(1, {true, true, true, true}), /*first=*/true);
  flat_.Clear();
  const Tensors gradients = Gradients(2, {true, false, true, false});
  flat_.Put(2, gradients[2]);
  flat_.Put(0, gradients[0]);
  EXPECT_THAT(flat_.reached(), ElementsAre(true, false, true, false));
  EXPECT_TRUE(IsAll(0, 2) && IsAll(1, 0) && IsAll(2, 2) && IsAll(3, 0));
}

TEST_F(AccumulateTest, AddsGradientsAndRecordsReachedParameters) {
  flat_.Accumulate(Gradients(1, {true, true, false, false}), /*first=*/true);
  EXPECT_THAT(flat_.reached(), ElementsAre(true, true, false, false));
  flat_.Accumulate(Gradients(2, {true, false, true, false}), /*first=*/false);
  EXPECT_THAT(flat_.reached(), ElementsAre(true, true, true, false));
  EXPECT_TRUE(IsAll(0, 3));
  EXPECT_TRUE(IsAll(1, 1));
  EXPECT_TRUE(IsAll(2, 2));
  EXPECT_TRUE(IsAll(3, 0));
}

TEST_F(AccumulateTest, FirstOverwritesGradients) {
  flat_.Accumulate(Gradients(1, {true, true, true, true}), /*first=*/true);
  flat_.Accumulate(Gradients(5, {true, false, false, false}), /*first=*/true);
  EXPECT_THAT(flat_.reached(), ElementsAre(true, false, false, false));
  EXPECT_TRUE(IsAll(0, 5));
  for (const size_t p : {1, 2, 3}) {
    EXPECT_TRUE(IsAll(p, 0)) << p;
  }
}

TEST_F(AccumulateTest, CallsOneOperatorForAllParameters) {
  {
    const OperatorCounter copies("aten::_foreach_copy_");
    flat_.Accumulate(Gradients(1, {true, true, false, true}), /*first=*/true);
    EXPECT_EQ(copies.count(), 1);
  }
  const OperatorCounter sums("aten::_foreach_add_");
  flat_.Accumulate(Gradients(1, {true, false, true, true}), /*first=*/false);
  EXPECT_EQ(sums.count(), 1);
}

TEST_F(AccumulateTest, AddsSparseGradients) {
  Tensors gradients = Gradients(1, {true, true, true, true});
  gradients[0] = gradients[0].to_sparse();
  flat_.Accumulate(gradients, /*first=*/true);
  flat_.Accumulate(gradients, /*first=*/false);
  EXPECT_TRUE(IsAll(0, 2) && IsAll(1, 2));
}

TEST_F(AccumulateTest, KeepsPaddingZero) {
  flat_.Accumulate(Gradients(1, {true, true, true, true}), /*first=*/true);
  flat_.Accumulate(Gradients(1, {true, true, true, true}), /*first=*/false);
  for (size_t b = 0; b < flat_.gradients().size(); ++b) {
    double sum = 0;
    for (const FlatSlot& slot : flat_.slots()) {
      sum += slot.buffer == b ? 2.0 * static_cast<double>(slot.numel) : 0;
    }
    EXPECT_EQ(flat_.gradients()[b].sum().item<double>(), sum);
  }
}

TEST(FlatParametersTest, FrozenParametersHaveNoGradientMemory) {
  PuppetReplica replica = MixedReplica();
  const PuppetReplica original = MixedReplica();
  FlatParameters flat(replica, /*frozen=*/{false, true, true, true});
  ASSERT_EQ(flat.values().size(), 1);
  ASSERT_EQ(flat.gradients().size(), 1);
  EXPECT_EQ(flat.values()[0].nbytes(), 64);  // "a" with its padding
  EXPECT_EQ(flat.gradients()[0].nbytes(), 64);
  EXPECT_EQ(flat.slots()[3].numel, 0);
  EXPECT_TRUE(flat.frozen(1));
  EXPECT_FALSE(flat.frozen(0));
  for (size_t p = 0; p < replica.parameters().size(); ++p) {
    EXPECT_TRUE(at::equal(replica.parameters()[p].value, original.parameters()[p].value));
  }
  flat.Accumulate({at::ones({2, 3}), {}, {}, {}}, /*first=*/true);
  flat.Accumulate({at::ones({2, 3}), {}, {}, {}}, /*first=*/false);
  EXPECT_TRUE(at::equal(flat.gradient(0), at::full({2, 3}, 2.0)));
  EXPECT_THAT(flat.reached(), ElementsAre(true, false, false, false));
}

TEST(FlatParametersTest, ReplicasShareFrozenParameters) {
  PuppetReplica replica = MixedReplica();
  PuppetReplica other = MixedReplica();
  const std::vector<bool> frozen = {false, true, false, true};
  const FlatParameters flat(replica, frozen);
  const FlatParameters shared(other, frozen, flat);
  for (size_t p = 0; p < frozen.size(); ++p) {
    EXPECT_TRUE(other.parameters()[p].value.is_alias_of(replica.parameters()[p].value));
  }
  EXPECT_FALSE(shared.gradients()[0].is_alias_of(flat.gradients()[0]));
}

TEST(FlatParametersTest, HasNoBuffersWithoutParameters) {
  PuppetReplica replica(nullptr);
  const FlatParameters flat(replica);
  EXPECT_TRUE(flat.values().empty());
  EXPECT_TRUE(flat.slots().empty());
}

}  // namespace
}  // namespace braid

#include "server/models/batch_layout.h"

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// Tensor "x" with the elements 0, 1, 2, ….
template <typename Element>
HostTensor Counting(const std::vector<int64_t>& shape) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
  std::vector<Element> elements(static_cast<size_t>(count));
  std::iota(elements.begin(), elements.end(), Element{0});
  return MakeHost<Element>("x", shape, elements);
}

TEST(BatchLayoutTest, MovesTheBatchToTheFrontAndBack) {
  // [time, batch]
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor ids, BatchToFront(Counting<int64_t>({2, 3}), 1));
  EXPECT_THAT(ids.shape, ElementsAre(3, 2));
  EXPECT_THAT(ValuesOf<int64_t>(ids), ElementsAre(0, 3, 1, 4, 2, 5));
  // [time, batch, features]
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor x, BatchToFront(Counting<float>({2, 3, 2}), 1));
  EXPECT_THAT(x.shape, ElementsAre(3, 2, 2));
  EXPECT_THAT(ValuesOf<float>(x), ElementsAre(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11));
  for (const size_t dim : {1, 2, 3}) {
    const HostTensor given = Counting<int32_t>({2, 3, 4, 5});
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor front, BatchToFront(given, dim));
    EXPECT_EQ(front.rows(), given.shape[dim]);
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor back, BatchFromFront(front, dim));
    EXPECT_EQ(back.shape, given.shape);
    EXPECT_THAT(ValuesOf<int32_t>(back), ElementsAreArray(ValuesOf<int32_t>(given)));
  }
}

TEST(BatchLayoutTest, DoesNotCopyTensorsWithoutAnotherBatchDim) {
  const HostTensor given = Counting<float>({4});
  EXPECT_EQ(BatchToFront(given, 0)->data, given.data);
  EXPECT_EQ(BatchToFront(given, 1)->data, given.data);
  EXPECT_EQ(BatchFromFront(given, 1)->data, given.data);
  EXPECT_THAT(ClientShape({4}, 1), ElementsAre(4));
}

TEST(BatchLayoutTest, TakesTensorsWithoutElements) {
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor front, BatchToFront(Counting<float>({5, 0, 2}), 1));
  EXPECT_THAT(front.shape, ElementsAre(0, 5, 2));
  EXPECT_THAT(BatchFromFront(front, 1)->shape, ElementsAre(5, 0, 2));
}

TEST(BatchLayoutTest, JoinsPiecesAlongTheBatch) {
  const HostTensor first = Counting<float>({1, 2});
  const HostTensor second = Counting<float>({2, 2});
  const GatheredTensor rows{"x", DataType::kFp32, {3, 2}, 24, {first, second}};
  BRAID_ASSERT_OK_AND_ASSIGN(const GatheredTensor whole, BatchFromFront(rows, 1));
  EXPECT_THAT(whole.shape, ElementsAre(2, 3));
  ASSERT_EQ(whole.pieces.size(), 1);
  EXPECT_THAT(ValuesOf<float>(whole.pieces[0]), ElementsAre(0, 0, 2, 1, 1, 3));
}

TEST(BatchLayoutTest, MovesTensorsOfTheExpectedRankOnly) {
  TensorSpec spec{"x", DataType::kFp32, {-1, 2}};
  spec.batch_dim = 1;
  std::vector<HostTensor> tensors = {Counting<float>({5, 4, 2})};
  BRAID_ASSERT_OK_AND_ASSIGN(const size_t copied, BatchToFront({spec}, &tensors));
  EXPECT_EQ(copied, 160);
  EXPECT_THAT(tensors[0].shape, ElementsAre(4, 5, 2));
  tensors = {Counting<float>({5, 4})};
  EXPECT_THAT(BatchToFront({spec}, &tensors).value(), 0);
  EXPECT_THAT(tensors[0].shape, ElementsAre(5, 4));
}

}  // namespace
}  // namespace braid

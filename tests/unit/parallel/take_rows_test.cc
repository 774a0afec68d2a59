#include "server/parallel/take_rows.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

// Rows 0 to 6 in chunks of 3, 0, 2 and 2.
class TakeRowsTest : public ::testing::Test {
 protected:
  at::Tensor Take(int64_t start, int64_t rows) const {
    return TakeRows(chunks_, start, rows, c10::kCPU);
  }

  const at::Tensor all_ = at::arange(14, at::kDouble).view({7, 2});
  const std::vector<at::Tensor> chunks_ = {all_.narrow(0, 0, 3), all_.narrow(0, 3, 0),
                                           all_.narrow(0, 3, 2), all_.narrow(0, 5, 2)};
};

TEST_F(TakeRowsTest, AnyRowsAreThoseOfTheWhole) {
  for (int64_t start = 0; start < 7; ++start) {
    for (int64_t rows = 1; start + rows <= 7; ++rows) {
      EXPECT_TRUE(at::equal(Take(start, rows), all_.narrow(0, start, rows)))
          << start << " + " << rows;
    }
  }
}

TEST_F(TakeRowsTest, AChunkOrAPartOfOneIsNotCopied) {
  EXPECT_TRUE(Take(3, 2).is_same(chunks_[2]));
  EXPECT_TRUE(Take(1, 2).is_alias_of(all_));
  EXPECT_FALSE(Take(2, 2).is_alias_of(all_));  // of two chunks
}

TEST(TakeRowsOfVectorsTest, OneDimensionIsEnough) {
  EXPECT_TRUE(
      at::equal(TakeRows({at::arange(2), at::arange(2) + 2}, 1, 2, c10::kCPU), at::arange(2) + 1));
}

}  // namespace
}  // namespace braid

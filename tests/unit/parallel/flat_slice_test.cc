#include "server/parallel/flat_slice.h"

#include "ATen/ATen.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(SliceOfTest, SlicesAreAdjacentAt64ByteBorders) {
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf}) {
    for (const int64_t numel : {0, 64, 96, 6400}) {
      const at::Tensor flat = at::zeros({numel}, type);
      for (const size_t parts : {1, 2, 3, 7, 64}) {
        int64_t end = 0;
        for (size_t part = 0; part < parts; ++part) {
          const Slice slice = SliceOf(flat, part, parts);
          EXPECT_EQ(slice.begin, end);
          EXPECT_LE(slice.begin, slice.end);
          EXPECT_EQ(slice.begin * flat.element_size() % 64, 0);
          end = slice.end;
        }
        EXPECT_EQ(end, numel);
      }
    }
  }
}

TEST(SliceOfTest, SliceSizesDifferByAtMost64Bytes) {
  const at::Tensor flat = at::zeros({160}, at::kFloat);
  EXPECT_EQ(SliceOf(flat, 0, 3).size(), 48);
  EXPECT_EQ(SliceOf(flat, 1, 3).size(), 48);
  EXPECT_EQ(SliceOf(flat, 2, 3).size(), 64);
}

TEST(SliceOfTest, LastSliceEndsAtUnpaddedBufferEnd) {
  const at::Tensor flat = at::zeros({21}, at::kDouble);
  EXPECT_EQ(SliceOf(flat, 0, 2).end, 8);
  EXPECT_EQ(SliceOf(flat, 1, 2).end, 21);
}

}  // namespace
}  // namespace braid

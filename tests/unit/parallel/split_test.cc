#include "server/parallel/split.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

TEST(ChunkSizesTest, Examples) {
  EXPECT_THAT(ChunkSizes(30, 3), ElementsAre(10, 10, 10));
  EXPECT_THAT(ChunkSizes(5, 4), ElementsAre(2, 2, 1));  // one replica idles
  EXPECT_THAT(ChunkSizes(20, 3), ElementsAre(7, 7, 6));
  EXPECT_THAT(ChunkSizes(1, 4), ElementsAre(1));
}

TEST(ChunkSizesTest, AreThoseOfTorchChunk) {
  for (int64_t rows = 1; rows <= 50; ++rows) {
    for (int64_t replicas = 1; replicas <= 8; ++replicas) {
      std::vector<int64_t> expected;
      for (const at::Tensor& chunk : at::chunk(at::empty({rows, 2}), replicas)) {
        expected.push_back(chunk.size(0));
      }
      EXPECT_EQ(ChunkSizes(rows, replicas), expected) << rows << " rows, " << replicas;
    }
  }
}

}  // namespace
}  // namespace braid

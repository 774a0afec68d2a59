#include "server/parallel/chunks.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Chunks = std::vector<std::vector<at::Tensor>>;

TEST(ChunkSizesTest, DividesRowsEvenly) {
  EXPECT_THAT(ChunkSizes(30, 3), ElementsAre(10, 10, 10));
  EXPECT_THAT(ChunkSizes(5, 4), ElementsAre(2, 2, 1));  // one replica is idle
  EXPECT_THAT(ChunkSizes(20, 3), ElementsAre(7, 7, 6));
  EXPECT_THAT(ChunkSizes(1, 4), ElementsAre(1));
}

TEST(ChunkSizesTest, MatchesTorchChunk) {
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

// Splits `outputs` into chunks of `rows` rows.
Chunks Split(const std::vector<at::Tensor>& outputs, const std::vector<int64_t>& rows) {
  Chunks chunks(rows.size());
  for (const at::Tensor& output : outputs) {
    const std::vector<at::Tensor> parts = output.split_with_sizes(rows);
    for (size_t c = 0; c < rows.size(); ++c) {
      chunks[c].push_back(parts[c]);
    }
  }
  return chunks;
}

TEST(GatherTest, RestoresTheBatch) {
  for (int64_t rows = 1; rows <= 20; ++rows) {
    for (int64_t replicas = 1; replicas <= 6; ++replicas) {
      const at::Tensor scores = at::rand({rows, 3});
      const at::Tensor ids = at::arange(rows);
      const std::vector<int64_t> sizes = ChunkSizes(rows, replicas);
      BRAID_ASSERT_OK_AND_ASSIGN(const auto gathered,
                                 Gather(Split({scores, ids}, sizes), sizes, c10::kCPU));
      ASSERT_EQ(gathered.size(), 2);
      EXPECT_TRUE(at::equal(gathered[0], scores)) << rows << " rows, " << replicas;
      EXPECT_TRUE(at::equal(gathered[1], ids)) << rows << " rows, " << replicas;
    }
  }
}

TEST(GatherTest, TurnsZeroDimOutputsIntoOneElementPerChunk) {
  const Chunks chunks = {{at::full({}, 1.5)}, {at::full({}, 2.5)}, {at::full({}, 3.5)}};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto gathered, Gather(chunks, {7, 7, 6}, c10::kCPU));
  EXPECT_TRUE(at::equal(gathered[0], at::tensor({1.5F, 2.5F, 3.5F})));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto alone, Gather({chunks[0]}, {20}, c10::kCPU));
  EXPECT_TRUE(at::equal(alone[0], at::tensor({1.5F})));
}

TEST(GatherTest, RejectsOutputWhoseRowsDifferFromItsChunk) {
  const Chunks chunks = {{at::zeros({7}), at::zeros({7, 2})}, {at::zeros({6}), at::zeros({5, 2})}};
  EXPECT_THAT(Gather(chunks, {7, 6}, c10::kCPU),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("output 1"), HasSubstr("5 rows for a chunk of 6"))));
}

TEST(ChunkOfTest, ReturnsTheRowsOfTheChunk) {
  const std::vector<int64_t> rows = {7, 7, 6};
  const at::Tensor whole = at::rand({20, 3});
  const Chunks chunks = Split({whole}, rows);
  for (size_t c = 0; c < rows.size(); ++c) {
    EXPECT_TRUE(at::equal(ChunkOf(whole, /*zero_dim=*/false, rows, c), chunks[c][0]));
  }
}

TEST(ChunkOfTest, ReturnsZeroDimPartOfZeroDimOutput) {
  const at::Tensor part = ChunkOf(at::tensor({1.5F, 2.5F}), /*zero_dim=*/true, {7, 6}, 1);
  EXPECT_EQ(part.dim(), 0);
  EXPECT_EQ(part.item<float>(), 2.5F);
}

// Rows 0 to 6 in chunks of 3, 0, 2 and 2.
class ConcatenateRowsTest : public ::testing::Test {
 protected:
  at::Tensor Rows(int64_t start, int64_t rows) const {
    return ConcatenateRows(chunks_, start, rows, c10::kCPU);
  }

  const at::Tensor all_ = at::arange(14, at::kDouble).view({7, 2});
  const std::vector<at::Tensor> chunks_ = {all_.narrow(0, 0, 3), all_.narrow(0, 3, 0),
                                           all_.narrow(0, 3, 2), all_.narrow(0, 5, 2)};
};

TEST_F(ConcatenateRowsTest, ReturnsAnyRangeOfRows) {
  for (int64_t start = 0; start < 7; ++start) {
    for (int64_t rows = 1; start + rows <= 7; ++rows) {
      EXPECT_TRUE(at::equal(Rows(start, rows), all_.narrow(0, start, rows)))
          << start << " + " << rows;
    }
  }
}

TEST_F(ConcatenateRowsTest, DoesNotCopyRowsOfASingleChunk) {
  EXPECT_TRUE(Rows(3, 2).is_same(chunks_[2]));
  EXPECT_TRUE(Rows(1, 2).is_alias_of(all_));
  EXPECT_FALSE(Rows(2, 2).is_alias_of(all_));  // spans two chunks
}

TEST(ConcatenateRowsOfVectorsTest, AcceptsOneDimension) {
  EXPECT_TRUE(at::equal(ConcatenateRows({at::arange(2), at::arange(2) + 2}, 1, 2, c10::kCPU),
                        at::arange(2) + 1));
}

}  // namespace
}  // namespace braid

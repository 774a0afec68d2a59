#include "server/parallel/gather.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/parallel/split.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Chunks = std::vector<std::vector<at::Tensor>>;

// `outputs` cut into chunks of `rows`.
Chunks Cut(const std::vector<at::Tensor>& outputs, const std::vector<int64_t>& rows) {
  Chunks chunks(rows.size());
  for (const at::Tensor& output : outputs) {
    const std::vector<at::Tensor> parts = output.split_with_sizes(rows);
    for (size_t c = 0; c < rows.size(); ++c) {
      chunks[c].push_back(parts[c]);
    }
  }
  return chunks;
}

TEST(GatherTest, UndoesTheSplit) {
  for (int64_t rows = 1; rows <= 20; ++rows) {
    for (int64_t replicas = 1; replicas <= 6; ++replicas) {
      const at::Tensor scores = at::rand({rows, 3});
      const at::Tensor ids = at::arange(rows);
      const std::vector<int64_t> sizes = ChunkSizes(rows, replicas);
      BRAID_ASSERT_OK_AND_ASSIGN(const auto gathered,
                                 Gather(Cut({scores, ids}, sizes), sizes, c10::kCPU));
      ASSERT_EQ(gathered.size(), 2);
      EXPECT_TRUE(at::equal(gathered[0], scores)) << rows << " rows, " << replicas;
      EXPECT_TRUE(at::equal(gathered[1], ids)) << rows << " rows, " << replicas;
    }
  }
}

TEST(GatherTest, ZeroDimOutputsBecomeOneElementAChunk) {
  const Chunks chunks = {{at::full({}, 1.5)}, {at::full({}, 2.5)}, {at::full({}, 3.5)}};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto gathered, Gather(chunks, {7, 7, 6}, c10::kCPU));
  EXPECT_TRUE(at::equal(gathered[0], at::tensor({1.5F, 2.5F, 3.5F})));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto alone, Gather({chunks[0]}, {20}, c10::kCPU));
  EXPECT_TRUE(at::equal(alone[0], at::tensor({1.5F})));
}

TEST(GatherTest, AnOutputOfOtherRowsThanItsChunkIsRefused) {
  const Chunks chunks = {{at::zeros({7}), at::zeros({7, 2})}, {at::zeros({6}), at::zeros({5, 2})}};
  EXPECT_THAT(Gather(chunks, {7, 6}, c10::kCPU),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("output 1"), HasSubstr("5 rows for a chunk of 6"))));
}

TEST(ChunkOfTest, IsTheChunksPart) {
  const std::vector<int64_t> rows = {7, 7, 6};
  const at::Tensor whole = at::rand({20, 3});
  const Chunks chunks = Cut({whole}, rows);
  for (size_t c = 0; c < rows.size(); ++c) {
    EXPECT_TRUE(at::equal(ChunkOf(whole, /*zero_dim=*/false, rows, c), chunks[c][0]));
  }
}

TEST(ChunkOfTest, OfAZeroDimOutputIsZeroDim) {
  const at::Tensor part = ChunkOf(at::tensor({1.5F, 2.5F}), /*zero_dim=*/true, {7, 6}, 1);
  EXPECT_EQ(part.dim(), 0);
  EXPECT_EQ(part.item<float>(), 2.5F);
}

}  // namespace
}  // namespace braid

#include "client/cli/split.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace braid::cli {
namespace {

std::vector<v1::Chunk> Chunks(const std::vector<std::pair<std::string, int64_t>>& parts) {
  std::vector<v1::Chunk> chunks;
  for (const auto& [device, rows] : parts) {
    v1::Chunk& chunk = chunks.emplace_back();
    chunk.set_device(device);
    chunk.set_rows(rows);
  }
  return chunks;
}

TEST(SplitTest, ThirtyRowsOnThreeDevices) {
  EXPECT_EQ(FormatSplit({{"x", {30, 5}}}, {{"output__0", {30, 2}}},
                        Chunks({{"cpu:0", 10}, {"cpu:1", 10}, {"cpu:2", 10}})),
            "device   rows  in         out\n"
            "cpu:0      10  x [10, 5]  output__0 [10, 2]\n"
            "cpu:1      10  x [10, 5]  output__0 [10, 2]\n"
            "cpu:2      10  x [10, 5]  output__0 [10, 2]\n"
            "outside    30  x [30, 5]  output__0 [30, 2]\n");
}

TEST(SplitTest, TensorsWithoutTheBatchsRowsStayWhole) {
  EXPECT_EQ(FormatSplit({{"x", {3}}, {"scale", {1, 4}}}, {{"y", {3}}, {"z", {}}},
                        Chunks({{"cuda:0/1", 2}, {"cuda:1", 1}})),
            "device    rows  in                   out\n"
            "cuda:0/1     2  x [2], scale [1, 4]  y [2], z []\n"
            "cuda:1       1  x [1], scale [1, 4]  y [1], z []\n"
            "outside      3  x [3], scale [1, 4]  y [3], z []\n");
}

TEST(SplitTest, NoChunksNoTable) { EXPECT_EQ(FormatSplit({{"x", {3}}}, {}, {}), ""); }

}  // namespace
}  // namespace braid::cli

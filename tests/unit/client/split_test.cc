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

v1::Chunk Shaped(const std::string& stage, const std::string& device, int64_t rows,
                 const std::string& input, const std::vector<std::string>& outputs) {
  v1::Chunk chunk;
  chunk.set_stage(stage);
  chunk.set_device(device);
  chunk.set_rows(rows);
  chunk.add_input_shapes(input);
  for (const std::string& output : outputs) chunk.add_output_shapes(output);
  return chunk;
}

TEST(SplitTest, ChunksThatSayTheirShapes) {
  EXPECT_EQ(FormatSplit({Shaped("", "cpu:0", 10, "[10, 5]", {"[10, 2]"}),
                         Shaped("", "cpu:1", 10, "[10, 5]", {"[10, 2]"}),
                         Shaped("", "cpu:2", 10, "[10, 5]", {"[10, 2]"})}),
            "device   rows  in       out\n"
            "cpu:0      10  [10, 5]  [10, 2]\n"
            "cpu:1      10  [10, 5]  [10, 2]\n"
            "cpu:2      10  [10, 5]  [10, 2]\n"
            "outside    30  [30, 5]  [30, 2]\n");
}

TEST(SplitTest, ATableForEachStage) {
  EXPECT_EQ(FormatSplit({Shaped("features", "cpu:0", 2, "[2]", {"[2, 4]"}),
                         Shaped("features", "cpu:1", 1, "[1]", {"[1, 4]"}),
                         Shaped("classifier", "cpu:0", 3, "[3, 4]", {"[3]", "[7, 3]"})}),
            "stage features\n"
            "device   rows  in   out\n"
            "cpu:0       2  [2]  [2, 4]\n"
            "cpu:1       1  [1]  [1, 4]\n"
            "outside     3  [3]  [3, 4]\n"
            "stage classifier\n"
            "device   rows  in      out\n"
            "cpu:0       3  [3, 4]  [3], [7, 3]\n"
            "outside     3  [3, 4]  [3], [7, 3]\n");
}

TEST(SplitTest, NumbersAreGatheredIntoOneForEachChunk) {
  EXPECT_EQ(
      FormatSplit({Shaped("", "cpu:0", 5, "[5]", {"[]"}), Shaped("", "cpu:1", 5, "[5]", {"[]"})}),
      "device   rows  in    out\n"
      "cpu:0       5  [5]   []\n"
      "cpu:1       5  [5]   []\n"
      "outside    10  [10]  [2]\n");
}

TEST(SplitTest, NoChunksNoTable) {
  EXPECT_EQ(FormatSplit({{"x", {3}}}, {}, {}), "");
  EXPECT_EQ(FormatSplit({}), "");
}

}  // namespace
}  // namespace braid::cli

#include "server/models/heaviest_path.h"

#include <cstddef>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(HeaviestPathTest, AnEmptyGraphHasNone) { EXPECT_EQ(FindHeaviestPath({}).weight, 0u); }

TEST(HeaviestPathTest, TheHeaviestIsNotTheLongest) {
  // 0 → 1 → 2 → 3, 0 → 4 → 3
  const HeaviestPath path = FindHeaviestPath({{1, {1, 4}}, {1, {2}}, {1, {3}}, {5, {}}, {10, {3}}});
  EXPECT_EQ(path.weight, 16u);
  EXPECT_EQ(path.start, 0u);
}

TEST(HeaviestPathTest, ItsStartMayComeLast) {
  const HeaviestPath path = FindHeaviestPath({{1, {}}, {2, {0}}, {4, {1}}});
  EXPECT_EQ(path.weight, 7u);
  EXPECT_EQ(path.start, 2u);
}

TEST(HeaviestPathTest, PartsThatDoNotMeetAreApart) {
  EXPECT_EQ(FindHeaviestPath({{1, {1}}, {2, {}}, {4, {3}}, {8, {}}}).weight, 12u);
}

TEST(HeaviestPathTest, WhatLeadsBackCountsAsAWhole) {
  // 0 → 1 ⇄ 2 → 3, where 3 leads to itself, and 1 → 4 beside it.
  const std::vector<GraphNode> graph = {{1, {1}}, {2, {2, 4}}, {4, {1, 3}}, {8, {3}}, {9, {}}};
  EXPECT_EQ(FindHeaviestPath(graph).weight, 16u);
}

TEST(HeaviestPathTest, CirclesThatShareANodeAreOne) {
  // 0 → 1 → 0, 1 → 2 → 3 → 1
  EXPECT_EQ(FindHeaviestPath({{1, {1}}, {2, {0, 2}}, {4, {3}}, {8, {1}}}).weight, 15u);
}

TEST(HeaviestPathTest, ItTakesPathsOfAnyLength) {
  constexpr size_t kNodes = 300'000;
  std::vector<GraphNode> graph(kNodes);
  for (size_t i = 0; i + 1 < kNodes; ++i) {
    graph[i] = {1, {i + 1}};
  }
  EXPECT_EQ(FindHeaviestPath(graph).weight, kNodes - 1);
  graph.back() = {1, {0}};
  EXPECT_EQ(FindHeaviestPath(graph).weight, kNodes);
}

}  // namespace
}  // namespace braid

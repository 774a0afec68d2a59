// How much the nodes of a graph add up to along a path, at most.
#pragma once

#include <cstddef>
#include <vector>

namespace braid {

struct GraphNode {
  size_t weight = 0;
  std::vector<size_t> next;  // what it leads to: places in the vector of all
};

struct HeaviestPath {
  size_t start = 0;  // a node at which it begins
  size_t weight = 0;
};

// The path that adds up to most, on which no node comes twice: or more than that where nodes lead
// back to each other, all of which are counted then. Takes time linear in nodes and edges.
HeaviestPath FindHeaviestPath(const std::vector<GraphNode>& graph);

}  // namespace braid

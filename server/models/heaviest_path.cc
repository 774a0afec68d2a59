#include "server/models/heaviest_path.h"

#include <algorithm>
#include <limits>

namespace braid {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();

// Tarjan's algorithm, with a stack of its own instead of the thread's. It completes what a node
// leads to before the node, so that the paths from there are known by then.
class Search {
 public:
  explicit Search(const std::vector<GraphNode>& graph) : graph_(graph), states_(graph.size()) {}

  HeaviestPath Run() {
    HeaviestPath heaviest;
    for (size_t root = 0; root < graph_.size(); ++root) {
      if (states_[root].number != kNone) {
        continue;
      }
      Enter(root);
      while (!visits_.empty()) {
        Step();
      }
      if (states_[root].path.weight > heaviest.weight) {
        heaviest = states_[root].path;
      }
    }
    return heaviest;
  }

 private:
  struct State {
    size_t number = kNone;  // in the order in which they were entered
    size_t lowest = 0;      // of those that it leads back to
    size_t edge = 0;        // the next to follow
    bool open = false;      // may be part of a component that is not complete yet
    HeaviestPath path;      // from here; while it is open, the heaviest that leaves from here
  };

  void Enter(size_t node) {
    states_[node].number = states_[node].lowest = entered_++;
    states_[node].open = true;
    visits_.push_back(node);
    open_.push_back(node);
  }

  void Step() {
    const size_t node = visits_.back();
    State& state = states_[node];
    if (state.edge == graph_[node].next.size()) {
      visits_.pop_back();
      if (state.lowest == state.number) {
        Complete(node);
      }
      return;
    }
    const size_t next = graph_[node].next[state.edge];
    if (states_[next].number == kNone) {
      Enter(next);  // and look at the edge again when that is done
      return;
    }
    ++state.edge;
    if (states_[next].open) {
      state.lowest = std::min(state.lowest, states_[next].lowest);
    } else if (states_[next].path.weight > state.path.weight) {
      state.path = states_[next].path;
    }
  }

  // All nodes that were entered since `first` lead to each other.
  void Complete(size_t first) {
    HeaviestPath path;
    const auto begin = std::find(open_.rbegin(), open_.rend(), first).base() - 1;
    for (auto node = begin; node != open_.end(); ++node) {
      if (states_[*node].path.weight > path.weight) {
        path = states_[*node].path;
      }
    }
    path.start = first;
    for (auto node = begin; node != open_.end(); ++node) {
      path.weight += graph_[*node].weight;
    }
    for (auto node = begin; node != open_.end(); ++node) {
      states_[*node].open = false;
      states_[*node].path = path;
    }
    open_.erase(begin, open_.end());
  }

  const std::vector<GraphNode>& graph_;
  std::vector<State> states_;
  std::vector<size_t> visits_;  // the path from the root to where the search is
  std::vector<size_t> open_;
  size_t entered_ = 0;
};

}  // namespace

HeaviestPath FindHeaviestPath(const std::vector<GraphNode>& graph) { return Search(graph).Run(); }

}  // namespace braid

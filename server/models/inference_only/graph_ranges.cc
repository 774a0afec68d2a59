#include "server/models/inference_only/graph_ranges.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "re2/re2.h"
#include "server/base/status.h"
#include "server/models/archive/graph_tensors.h"

namespace braid {
namespace {

bool KeepsValues(const std::string& name) {
  static const auto* const kNames = new std::set<std::string>(
      {"_to_copy", "_unsafe_view", "alias", "clone", "contiguous", "detach", "expand", "flatten",
       "permute", "ravel", "reshape", "squeeze", "t", "to", "transpose", "type_as", "unflatten",
       "unsqueeze", "view"});
  return kNames->contains(name);
}

bool IsInteger(std::optional<DataType> type) {
  return type && !IsFloatingPoint(*type) && *type != DataType::kBool;
}

// "embedding" of "torch.ops.aten.embedding.default"; empty for what is none of ATen's.
std::string NameOf(const std::string& target) {
  static const re2::RE2 kTarget(R"(torch\.ops\.aten\.(\w+)\.\w+)");
  std::string name;
  RE2::FullMatch(target, kTarget, &name);
  return name;
}

}  // namespace

absl::Status FindGraphRanges(const JsonField& graph, const std::vector<std::string>& names,
                             std::vector<PackageInput>* inputs) {
  BRAID_ASSIGN_OR_RETURN(const JsonField values, graph.Get("tensor_values"));
  BRAID_ASSIGN_OR_RETURN(const JsonField list, graph.Get("nodes"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> nodes, list.Items());
  std::map<std::string, size_t> holds;  // by the tensor's name: the input whose values it has
  for (size_t i = 0; i < names.size(); ++i) {
    holds[names[i]] = i;
  }
  std::map<size_t, int64_t> last;
  for (const JsonField& node : nodes) {
    BRAID_ASSIGN_OR_RETURN(const JsonField target, node.Get("target"));
    BRAID_ASSIGN_OR_RETURN(const std::string text, target.String());
    const std::string name = NameOf(text);
    BRAID_ASSIGN_OR_RETURN(const JsonField taken, node.Get("inputs"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, taken.Items());
    std::vector<GraphTensor> tensors;
    for (const JsonField& item : items) {
      BRAID_ASSIGN_OR_RETURN(const JsonField argument, item.Get("arg"));
      if (argument.Has("as_tensor")) {
        BRAID_ASSIGN_OR_RETURN(tensors.emplace_back(), ReadGraphTensor(argument, values));
      }
    }
    if (tensors.empty()) {
      continue;
    }
    if (absl::EndsWith(name, "_") && IsInteger(tensors[0].type)) {
      return absl::OkStatus();
    }
    const bool lookup = name == "embedding" || name == "embedding_bag" || name == "_embedding_bag";
    if (lookup && tensors.size() > 1 && !tensors[0].shape.empty() && tensors[0].shape[0] > 0) {
      if (const auto input = holds.find(tensors[1].name); input != holds.end()) {
        const int64_t rows = tensors[0].shape[0];
        const auto before = last.try_emplace(input->second, rows - 1).first;
        before->second = std::min(before->second, rows - 1);
      }
    }
    const auto input = holds.find(tensors[0].name);
    if (!KeepsValues(name) || input == holds.end()) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const JsonField given, node.Get("outputs"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> results, given.Items());
    if (results.size() == 1 && results[0].Has("as_tensor")) {
      BRAID_ASSIGN_OR_RETURN(const GraphTensor result, ReadGraphTensor(results[0], values));
      // Another integer type holds each index, unless it is smaller than those of embeddings.
      if (result.type == DataType::kInt32 || result.type == DataType::kInt64) {
        holds[result.name] = input->second;
      }
    }
  }
  for (const auto& [input, index] : last) {
    if (IsInteger((*inputs)[input].type)) {
      (*inputs)[input].range = ValueRange{0, index};
    }
  }
  return absl::OkStatus();
}

}  // namespace braid

#include "server/models/archive/package_interface.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/base/host_tensor.h"
#include "server/base/status.h"

namespace braid {
namespace {

using nlohmann::json;

// Maximum depth of a tree. No real result is deeper.
constexpr int kMaxDepth = 64;

// Parses JSON and drops values that are nested deeper than any module's tree. Copying deeply nested
// JSON overflows the stack.
json ParseShallow(absl::string_view text) {
  constexpr int kMaxJsonDepth = 4 * kMaxDepth;
  return json::parse(
      text, [](int depth, json::parse_event_t, json&) { return depth < kMaxJsonDepth; },
      /*allow_exceptions=*/false);
}

// Returns the keys of `count` children from a node's context: ["a", "b"] for a dict and for outputs
// of transformers; [["a", "b"], […]] for a dataclass, where the second list has the fields that are
// None. Null if there are no keys.
json KeysOf(const json& node, size_t count) {
  const auto context = node.find("context");
  if (context == node.end() || !context->is_string()) {
    return {};
  }
  json keys = ParseShallow(context->get<std::string>());
  if (keys.is_array() && keys.size() == 2 && keys[0].is_array()) {
    keys = json(keys[0]);
  }
  return keys.is_array() && keys.size() == count ? keys : json();
}

// Returns the children of a node with their keys, or with indices if the node has no keys.
std::vector<std::pair<std::string, json>> Children(const json& node, bool* keyed) {
  std::vector<std::pair<std::string, json>> children;
  const json nodes = node.value("children_spec", json::array());
  const json keys = KeysOf(node, nodes.size());
  *keyed = node.value("type", json()).is_string() && keys.is_array();
  for (size_t k = 0; k < nodes.size(); ++k) {
    const bool named = *keyed && keys[k].is_string();
    children.emplace_back(named ? keys[k].get<std::string>() : absl::StrCat(k), nodes[k]);
  }
  return children;
}

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

// Appends the paths of all leaves, as Flatten() names them: indices are used only below a key.
void AddLeaves(const json& node, const std::string& path, std::vector<std::string>* leaves,
               int depth = 0) {
  if (depth > kMaxDepth || !node.is_object() || !node.value("type", json()).is_string()) {
    leaves->push_back(path);
    return;
  }
  bool keyed = false;
  for (const auto& [key, child] : Children(node, &keyed)) {
    AddLeaves(child, keyed || !path.empty() ? Join(path, key) : path, leaves, depth + 1);
  }
}

}  // namespace

json ParseTree(absl::string_view text) {
  json tree = ParseShallow(text);
  return tree.is_array() && tree.size() == 2 ? std::move(tree[1]) : json();
}

std::vector<std::string> InputNames(const json& tree, const std::vector<std::string>& positional) {
  std::vector<std::string> names;
  bool keyed = false;
  if (!tree.is_object()) {
    return names;
  }
  for (const auto& [half, arguments] : Children(tree, &keyed)) {
    size_t position = 0;
    for (const auto& [key, argument] : Children(arguments, &keyed)) {
      const std::string name = keyed                          ? key
                               : position < positional.size() ? positional[position]
                                                              : absl::StrCat("input__", key);
      AddLeaves(argument, name, &names);
      ++position;
    }
  }
  return names;
}

std::vector<std::string> OutputPaths(const json& tree) {
  std::vector<std::string> paths;
  if (tree.is_object()) {
    AddLeaves(tree, "", &paths);
  }
  return paths;
}

std::string DescribePackageInput(const PackageInput& input) {
  const auto size = [](std::string* out, const PackageDim& dim) {
    if (dim.fixed()) {
      absl::StrAppend(out, dim.min);
    } else if (dim.max == std::numeric_limits<int64_t>::max()) {
      absl::StrAppend(out, "from ", dim.min);
    } else {
      absl::StrAppend(out, dim.min, " to ", dim.max);
    }
  };
  return absl::StrCat(DataTypeName(input.type), "[", absl::StrJoin(input.dims, ", ", size), "]");
}

absl::Status CheckPackageShape(const PackageInput& input, DataType type,
                               const std::vector<int64_t>& shape, std::optional<size_t> batch_dim) {
  bool fits = type == input.type && shape.size() == input.dims.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) {
    const bool padded = d == batch_dim;
    fits = shape[d] <= input.dims[d].max && (padded || shape[d] >= input.dims[d].min);
  }
  if (fits) {
    return absl::OkStatus();
  }
  return InvalidField(
      "inputs", absl::StrCat("input '", input.name, "': ", DataTypeName(type), ShapeString(shape),
                             " (model.pt2 takes ", DescribePackageInput(input), ")"));
}

}  // namespace braid

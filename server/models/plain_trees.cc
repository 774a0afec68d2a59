#include "server/models/plain_trees.h"

#include <set>

namespace braid {
namespace {

using nlohmann::json;

// What is deeper would take too much of the stack here.
constexpr int kDeepest = 256;

bool IsDeeper(const json& value, int most) {
  if (!value.is_structured()) {
    return false;
  }
  if (most == 0) {
    return true;
  }
  for (const json& part : value) {
    if (IsDeeper(part, most - 1)) {
      return true;
    }
  }
  return false;
}

bool IsKnown(const std::string& type) {
  static const auto* const kKnown = new std::set<std::string>(
      {"builtins.dict", "builtins.list", "builtins.tuple", "collections.namedtuple",
       "torch.fx.immutable_collections.immutable_dict",
       "torch.fx.immutable_collections.immutable_list"});
  return kKnown->contains(type);
}

// Whether that changed anything.
bool MakePlain(json* node) {
  bool changed = false;
  if (!node->is_object()) {
    return changed;
  }
  if (const auto children = node->find("children_spec");
      children != node->end() && children->is_array()) {
    for (json& child : *children) {
      changed = MakePlain(&child) || changed;
    }
  }
  const auto type = node->find("type");
  if (type != node->end() && type->is_string() && !IsKnown(type->get<std::string>())) {
    *type = "builtins.tuple";
    (*node)["context"] = "null";
    return true;
  }
  return changed;
}

// Of a call's "in_spec" or "out_spec", which is JSON in a string: "[1, {…}]".
bool MakePlainText(json* text) {
  if (!text->is_string()) {
    return false;
  }
  json tree = json::parse(text->get<std::string>(), nullptr, /*allow_exceptions=*/false);
  if (!tree.is_array() || tree.size() != 2 || IsDeeper(tree, kDeepest) || !MakePlain(&tree[1])) {
    return false;
  }
  *text = tree.dump();
  return true;
}

}  // namespace

std::optional<std::string> WithPlainTrees(json program) {
  static const json::json_pointer kCalls("/graph_module/module_call_graph");
  if (IsDeeper(program, kDeepest) || !program.contains(kCalls)) {
    return std::nullopt;
  }
  bool changed = false;
  for (json& call : program[kCalls]) {
    if (!call.is_object() || !call.contains("signature") || !call["signature"].is_object()) {
      continue;
    }
    for (const char* name : {"in_spec", "out_spec"}) {
      if (const auto spec = call["signature"].find(name); spec != call["signature"].end()) {
        changed = MakePlainText(&*spec) || changed;
      }
    }
  }
  return changed ? std::optional(program.dump()) : std::nullopt;
}

}  // namespace braid

// Programs that take or return objects of classes, such as transformers' outputs, for an
// interpreter that knows of tuples, lists and dicts alone.
#pragma once

#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace braid {

// `program`, what torch.export.save describes one with, with tuples in the place of what else its
// trees of arguments and results have: their tensors are the same, in the same order. nullopt:
// there is nothing else, or too deep down for anybody to have meant it.
std::optional<std::string> WithPlainTrees(nlohmann::json program);

}  // namespace braid

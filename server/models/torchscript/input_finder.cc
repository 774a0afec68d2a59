#include "server/models/torchscript/input_finder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace braid {

std::optional<size_t> InputsByName::Find(const std::string& path) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].name == path) {
      found_.insert(i);
      return i;
    }
  }
  return std::nullopt;
}

std::vector<std::string> InputsByName::Keys(const std::string& path, bool list, bool of_tensors) {
  std::vector<std::string> keys;
  for (const TensorSpec& input : inputs_) {
    if (!absl::StartsWith(input.name, path + ".")) {
      continue;
    }
    std::string key = input.name.substr(path.size() + 1);
    key = of_tensors ? key : key.substr(0, key.find('.'));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      keys.push_back(std::move(key));
    }
  }
  for (size_t k = 0; list && k < keys.size(); ++k) {
    keys[k] = absl::StrCat(k);  // one that is missing is not found
  }
  return keys;
}

std::optional<size_t> InputsInOrder::Find(const std::string& path) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].scalar && inputs_[i].name == path) {
      return i;
    }
  }
  if (next_ == order_.size()) {
    return std::nullopt;
  }
  const size_t input = order_[next_++];
  const std::string& name = inputs_[input].name;
  if (path == name || absl::EndsWith(path, absl::StrCat(".", name))) {
    in_place_.insert(input);
  }
  return input;
}

std::vector<std::string> InputsInOrder::Keys(const std::string&, bool list, bool of_tensors) {
  std::vector<std::string> keys;
  // A name is the key of one tensor.
  for (size_t k = 0; k < form_.elements && (list || of_tensors); ++k) {
    keys.push_back(list || next_ + k >= order_.size() ? absl::StrCat(k)
                                                      : inputs_[order_[next_ + k]].name);
  }
  return keys;
}

}  // namespace braid

// Which inputs of a configuration are for which parts of forward's arguments.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/models/model_config.h"

namespace braid {

// Where the inputs for a value are found. Asked in the order of forward's arguments.
class InputFinder {
 public:
  virtual ~InputFinder() = default;
  // The input for the tensor or scalar at `path`.
  virtual std::optional<size_t> Find(const std::string& path) = 0;
  // The keys of the parts of a list or dict at `path` that there are inputs for.
  virtual std::vector<std::string> Keys(const std::string& path, bool list, bool of_tensors) = 0;
  // Whether to look for what has tensors and may be left out. Asked once for each.
  virtual bool Optional() = 0;
  // How many inputs have been found.
  virtual size_t used() const = 0;
};

// By the names of the inputs, which outlive it.
class InputsByName final : public InputFinder {
 public:
  explicit InputsByName(const std::vector<TensorSpec>& inputs) : inputs_(inputs) {}

  std::optional<size_t> Find(const std::string& path) override;
  std::vector<std::string> Keys(const std::string& path, bool list, bool of_tensors) override;
  bool Optional() override { return true; }
  size_t used() const override { return found_.size(); }
  bool all_found() const { return found_.size() == inputs_.size(); }
  bool found(size_t input) const { return found_.count(input) > 0; }

 private:
  const std::vector<TensorSpec>& inputs_;
  std::set<size_t> found_;
};

// How a call takes tensors that it is given one behind the other.
struct CallForm {
  size_t optionals = 0;  // so many of the first that may be left out are there
  size_t elements = 0;   // of its list or dict
};

// In the order `order` of the tensors among the inputs, which outlive it. Scalars go by their names
// all the same.
class InputsInOrder final : public InputFinder {
 public:
  InputsInOrder(const std::vector<TensorSpec>& inputs, std::vector<size_t> order, CallForm form)
      : inputs_(inputs), order_(std::move(order)), form_(form) {}

  std::optional<size_t> Find(const std::string& path) override;
  std::vector<std::string> Keys(const std::string& path, bool list, bool of_tensors) override;
  bool Optional() override { return optionals_++ < form_.optionals; }
  size_t used() const override { return next_; }
  bool all_found() const { return next_ == order_.size(); }
  // Whether a tensor was found where its name, or the key that it is, says.
  bool in_place(size_t input) const { return in_place_.count(input) > 0; }
  bool all_in_place() const { return in_place_.size() == order_.size(); }

 private:
  const std::vector<TensorSpec>& inputs_;
  const std::vector<size_t> order_;
  const CallForm form_;
  size_t next_ = 0;
  size_t optionals_ = 0;
  std::set<size_t> in_place_;
};

}  // namespace braid

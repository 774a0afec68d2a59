// Groups of parameters that are updated differently from the rest, or not at all.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Immutable.
class ParameterGroups {
 public:
  // Assigns the trainable parameters, whose `names` are in the model's order, to groups.
  // INVALID_ARGUMENT naming the wrong field ("parameter_groups[0].pattern"); FAILED_PRECONDITION if
  // every parameter is frozen.
  static absl::StatusOr<ParameterGroups> Create(std::vector<ParameterGroupSpec> specs,
                                                const std::vector<std::string>& names);

  // Returns the group of parameter `p`: 0 for none, g + 1 for specs()[g].
  size_t group_of(size_t p) const { return group_of_[p]; }
  bool frozen(size_t p) const { return group_of_[p] > 0 && specs_[group_of_[p] - 1].frozen; }

  // Returns the groups of parameters [first, first + count).
  ParameterGroups Range(size_t first, size_t count) const;

  // Returns the number of groups, plus one for the parameters without a group.
  size_t size() const { return specs_.size() + 1; }
  const std::vector<ParameterGroupSpec>& specs() const { return specs_; }

  // Returns the groups, by their number in group_of(), that have parameters to update.
  const std::vector<size_t>& updated() const { return updated_; }

 private:
  ParameterGroups(std::vector<ParameterGroupSpec> specs, std::vector<size_t> group_of);

  std::vector<ParameterGroupSpec> specs_;
  std::vector<size_t> group_of_;
  std::vector<size_t> updated_;
};

}  // namespace braid

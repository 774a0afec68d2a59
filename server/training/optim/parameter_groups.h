// Which parameters are updated otherwise than the rest, and which not at all.
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
  // Sorts the trainable parameters, by their `names` in the model's order. INVALID_ARGUMENT naming
  // the field ("parameter_groups[0].pattern") that is wrong; FAILED_PRECONDITION if every parameter
  // is frozen.
  static absl::StatusOr<ParameterGroups> Create(std::vector<ParameterGroupSpec> specs,
                                                const std::vector<std::string>& names);

  // Of parameter `p`: 0: in no group; g + 1: in specs()[g].
  size_t group_of(size_t p) const { return group_of_[p]; }
  bool frozen(size_t p) const { return group_of_[p] > 0 && specs_[group_of_[p] - 1].frozen; }

  // The same groups, of parameters [first, first + count) alone.
  ParameterGroups Range(size_t first, size_t count) const;

  // The groups and the rest.
  size_t size() const { return specs_.size() + 1; }
  const std::vector<ParameterGroupSpec>& specs() const { return specs_; }

 private:
  ParameterGroups(std::vector<ParameterGroupSpec> specs, std::vector<size_t> group_of)
      : specs_(std::move(specs)), group_of_(std::move(group_of)) {}

  std::vector<ParameterGroupSpec> specs_;
  std::vector<size_t> group_of_;
};

}  // namespace braid

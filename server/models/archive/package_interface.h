// Inputs and outputs of an inference-only package.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "server/base/data_type.h"
#include "server/models/model_config.h"

namespace braid {

// Sizes of a dimension that a package supports, both ends inclusive.
struct PackageDim {
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
  // Dims with the same symbol have the same size. Empty: unknown.
  std::string symbol = {};
  bool fixed() const { return min == max; }
};

struct PackageInput {
  // Name of the argument, or input__<position>, and keys and indices, joined by '.'.
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<PackageDim> dims;
  bool on_cpu = true;                              // false: on the package's device
  bool mutated = false;                            // the package modifies it in place
  bool number = false;                             // an integer, passed to the package as INT64[1]
  std::optional<ValueRange> range = std::nullopt;  // of indices into embeddings
};

struct PackageInterface {
  std::vector<PackageInput> inputs;
  // OutputLeaf::path of each tensor that the package returns.
  std::vector<std::string> output_paths;
  // Positions of outputs that are numbers, carried as rank-0 tensors.
  std::set<size_t> numbers;
};

// Parses "[1, {…}]", torch.export's description of arguments and results, and returns the tree.
// Returns null for other text.
nlohmann::json ParseTree(absl::string_view text);

// Returns the names of the inputs in a tree with nodes {"type", "context", "children_spec"}.
// positional: names of forward()'s arguments, as far as known. Empty if `tree` is not an object.
std::vector<std::string> InputNames(const nlohmann::json& tree,
                                    const std::vector<std::string>& positional);
// Returns the paths of the outputs in such a tree.
std::vector<std::string> OutputPaths(const nlohmann::json& tree);

// INVALID_ARGUMENT, with the expected type and shape, if `input` does not accept a tensor of `type`
// and `shape`. batch_dim: dim that may be smaller, because the caller pads it.
absl::Status CheckPackageShape(const PackageInput& input, DataType type,
                               const std::vector<int64_t>& shape, std::optional<size_t> batch_dim);

// Describes type and shape: "FP32[1 to 32, 10]".
std::string DescribePackageInput(const PackageInput& input);

}  // namespace braid

// What a package that can only be run takes and returns.
#pragma once

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

// The sizes that a package was made for; both included.
struct PackageDim {
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
  // Dims of one symbol are of one size. Empty: unknown.
  std::string symbol = {};
  bool fixed() const { return min == max; }
};

struct PackageInput {
  // The argument's, or input__<position>; then keys and indices, joined by '.'.
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<PackageDim> dims;
  bool on_cpu = true;                              // else on the package's device
  bool written = false;                            // the package works in place on it
  bool number = false;                             // one integer: INT64[1] up to the package
  std::optional<ValueRange> range = std::nullopt;  // of indices into embeddings
};

struct PackageInterface {
  std::vector<PackageInput> inputs;
  // Of the tensors that it returns, as OutputLeaf has them.
  std::vector<std::string> output_paths;
  // Positions of outputs that are numbers, carried as rank-0 tensors.
  std::set<size_t> numbers;
};

// Returns the tree in "[1, {…}]", as torch.export describes arguments and results; null for
// anything else.
nlohmann::json ParseTree(absl::string_view text);

// Reads such trees, {"type", "context", "children_spec"}. Names of the tensors that are passed:
// `positional` are forward's arguments, as far as they are known. Empty if `tree` is none.
std::vector<std::string> InputNames(const nlohmann::json& tree,
                                    const std::vector<std::string>& positional);
std::vector<std::string> OutputPaths(const nlohmann::json& tree);

// Whether a tensor of `type` and `shape` is one that `input` was made for; `rows`: dim 0 may be
// shorter, for it will be padded. INVALID_ARGUMENT that says what would be right.
absl::Status CheckPackageShape(const PackageInput& input, DataType type,
                               const std::vector<int64_t>& shape, bool batched);

// "FP32[1..32, 10]".
std::string DescribePackageInput(const PackageInput& input);

}  // namespace braid

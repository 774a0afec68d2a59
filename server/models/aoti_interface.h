// What an AOTInductor package takes and returns, as its own source code tells: the compiled code
// checks nothing of what it is given.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/data_type.h"

namespace braid {

// The sizes that the package was compiled for; both included.
struct AotiDim {
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
  bool fixed() const { return min == max; }
};

struct AotiInput {
  // The keyword, or input__<position>; then keys and indices, joined by '.'.
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<AotiDim> dims;
  bool on_cpu = true;  // else on the package's device
};

struct AotiInterface {
  std::vector<AotiInput> inputs;
  // Of the tensors that it returns, as OutputLeaf has them.
  std::vector<std::string> output_paths;
};

// From the package's wrapper.cpp. FAILED_PRECONDITION if it does not say enough, or wants an input
// that is not laid out row by row.
absl::StatusOr<AotiInterface> ParseAotiInterface(absl::string_view source);

// Whether a tensor of `type` and `shape` is one that `input` was compiled for; `rows`: dim 0 may be
// shorter, for it will be padded. INVALID_ARGUMENT that says what would be right.
absl::Status CheckAotiShape(const AotiInput& input, DataType type,
                            const std::vector<int64_t>& shape, bool batched);

// "FP32[1..32, 10]".
std::string DescribeAotiInput(const AotiInput& input);

}  // namespace braid

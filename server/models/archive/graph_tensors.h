// Reads the tensors of torch.export's graphs in JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/data_type.h"
#include "server/base/json_fields.h"

namespace braid {

struct GraphTensor {
  std::string name;
  std::optional<DataType> type;  // nullopt: not supported by Braid
  std::vector<int64_t> shape;    // -1: dynamic size
  // Expression of each dynamic size; empty for fixed sizes.
  std::vector<std::string> expressions;
  bool on_cpu = true;
  bool dense = true;  // strided, not sparse
};

// Reads the tensor of an argument. argument: {"as_tensor": {"name"}}. values: the graph's
// "tensor_values". FAILED_PRECONDITION for another kind of argument.
absl::StatusOr<GraphTensor> ReadGraphTensor(const JsonField& argument, const JsonField& values);

// Returns the arguments of `kind`, "user_input" or "user_output", in the list `specs` of
// `signature`, "input_specs" or "output_specs". Skips the package's constants, parameters and
// buffers.
absl::StatusOr<std::vector<JsonField>> SignatureArguments(const JsonField& signature,
                                                          const char* specs, const char* kind);

}  // namespace braid

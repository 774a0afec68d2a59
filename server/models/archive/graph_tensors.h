// What the graphs of torch.export, in JSON, say of their tensors.
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
  std::optional<DataType> type;  // nullopt: one that cannot be sent
  std::vector<int64_t> shape;    // -1: not fixed
  // As many as there are sizes: what one that is not fixed is; else empty.
  std::vector<std::string> expressions;
  bool on_cpu = true;
  bool dense = true;  // laid out by strides, not sparse
};

// `argument`: {"as_tensor": {"name"}}; `values`: the graph's "tensor_values". FAILED_PRECONDITION
// if it is another kind of argument.
absl::StatusOr<GraphTensor> ReadGraphTensor(const JsonField& argument, const JsonField& values);

// The arguments of `kind`, "user_input" or "user_output", in `signature`'s `specs`, "input_specs"
// or "output_specs". Constants, parameters and buffers are the package's own, and are passed over.
absl::StatusOr<std::vector<JsonField>> SignatureArguments(const JsonField& signature,
                                                          const char* specs, const char* kind);

}  // namespace braid

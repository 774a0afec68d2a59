// What is known of a model before a request comes: names, datatypes, shapes and batching.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/data_type.h"

namespace braid {

struct TensorSpec {
  std::string name;
  DataType type = DataType::kFp32;
  // Without the batch dimension where the model is batched; -1: any size.
  std::vector<int64_t> dims;
  // An input that has no batch dimension in a batched model: every replica gets it whole.
  bool broadcast = false;
};

struct ModelConfig {
  std::string name;
  // Largest batch of one forward pass. 0: the model is not batched: dims are whole shapes, requests
  // are neither merged nor split. A larger request is split, not refused.
  int64_t max_batch_size = 0;
  // How long a batch that is not full waits for more, while a worker is free.
  absl::Duration max_queue_delay;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  // Of a version that a trainer published: "trainer", "step", "sequence", "checkpoint", "created".
  std::map<std::string, std::string> origin;

  bool batched() const { return max_batch_size > 0; }
  // Whether tensors of `spec` have a dimension before its dims.
  bool has_batch_dim(const TensorSpec& spec) const { return batched() && !spec.broadcast; }
};

// Of a batch of a model that has no config.pbtxt.
inline constexpr int64_t kDefaultMaxBatchSize = 256;

// Reads a config.pbtxt for the model in folder `name`. UNIMPLEMENTED for a setting that Braid does
// not have, INVALID_ARGUMENT for one that makes no sense, naming the field.
using ConfigReader =
    std::function<absl::StatusOr<ModelConfig>(const std::string& path, const std::string& name)>;

}  // namespace braid

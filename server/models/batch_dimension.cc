#include "server/models/batch_dimension.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace braid {
namespace {

bool BeginsWithAnySize(const std::vector<int64_t>& dims) {
  return !dims.empty() && dims.front() < 0;
}

bool HasBatchDim(const TensorSpec& spec) {
  return spec.broadcast || spec.scalar ||
         (BeginsWithAnySize(spec.dims) && (!spec.reshape || BeginsWithAnySize(*spec.reshape)));
}

// Applies `change` to dims and reshape of every spec that is neither broadcast nor scalar.
template <typename Change>
void ChangeDims(const Change& change, std::vector<TensorSpec>* specs) {
  for (TensorSpec& spec : *specs) {
    if (!spec.broadcast && !spec.scalar) {
      change(&spec.dims);
      if (spec.reshape) {
        change(&*spec.reshape);
      }
    }
  }
}

bool IsBroadcast(const ModelConfig& config, const std::string& input) {
  return std::any_of(config.inputs.begin(), config.inputs.end(), [&input](const TensorSpec& spec) {
    return spec.name == input && spec.broadcast;
  });
}

}  // namespace

bool SeparateBatchDim(std::string reason, ModelConfig* config) {
  if (!std::all_of(config->inputs.begin(), config->inputs.end(), HasBatchDim) ||
      !std::all_of(config->outputs.begin(), config->outputs.end(), HasBatchDim)) {
    return false;
  }
  const auto erase = [](std::vector<int64_t>* dims) { dims->erase(dims->begin()); };
  ChangeDims(erase, &config->inputs);
  ChangeDims(erase, &config->outputs);
  for (Warmup& warmup : config->warmups) {
    for (auto& [name, input] : warmup.inputs) {
      if (!IsBroadcast(*config, name) && !input.dims.empty()) {
        warmup.batch_size = input.dims.front();
        erase(&input.dims);
      }
    }
  }
  config->max_batch_size = kDefaultMaxBatchSize;
  config->row_independence = RowIndependence::kDependent;
  config->row_independence_reason = std::move(reason);
  return true;
}

ModelConfig JoinBatchDim(ModelConfig config) {
  if (!config.batched() || config.merges_requests()) {
    return config;
  }
  const auto insert = [](std::vector<int64_t>* dims) { dims->insert(dims->begin(), -1); };
  ChangeDims(insert, &config.inputs);
  ChangeDims(insert, &config.outputs);
  for (Warmup& warmup : config.warmups) {
    for (auto& [name, input] : warmup.inputs) {
      if (!IsBroadcast(config, name)) {
        input.dims.insert(input.dims.begin(), warmup.batch_size);
      }
    }
    warmup.batch_size = 0;
  }
  config.max_batch_size = 0;
  config.preferred_batch_sizes.clear();
  config.preferred_chunk_rows = 0;
  return config;
}

}  // namespace braid

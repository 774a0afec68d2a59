#include "server/models/batch_dimension.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace braid {
namespace {

using Dims = std::vector<int64_t>;

bool IsAnySize(const Dims& dims, size_t dim) { return dim < dims.size() && dims[dim] < 0; }

bool HasBatchDim(const TensorSpec& spec) {
  return spec.broadcast || spec.scalar ||
         (IsAnySize(spec.dims, spec.batch_dim) &&
          (!spec.reshape || IsAnySize(*spec.reshape, spec.batch_dim)));
}

Dims::iterator At(size_t dim, Dims* dims) {
  return dims->begin() + static_cast<std::ptrdiff_t>(dim);
}

// Applies `change` to dims and reshape of every spec that is neither broadcast nor scalar, with the
// dim of its batch.
template <typename Change>
void ChangeDims(const Change& change, std::vector<TensorSpec>* specs) {
  for (TensorSpec& spec : *specs) {
    if (!spec.broadcast && !spec.scalar) {
      change(spec.batch_dim, &spec.dims);
      if (spec.reshape) {
        change(spec.batch_dim, &*spec.reshape);
      }
    }
  }
}

// Returns the dim of the batch; nullopt for a broadcast input.
std::optional<size_t> BatchDimOf(const ModelConfig& config, const std::string& input) {
  const auto spec = std::find_if(config.inputs.begin(), config.inputs.end(),
                                 [&](const TensorSpec& other) { return other.name == input; });
  return spec == config.inputs.end() || spec->broadcast ? std::nullopt
                                                        : std::optional(spec->batch_dim);
}

}  // namespace

bool SeparateBatchDim(std::string reason, ModelConfig* config) {
  if (!std::all_of(config->inputs.begin(), config->inputs.end(), HasBatchDim) ||
      !std::all_of(config->outputs.begin(), config->outputs.end(), HasBatchDim)) {
    return false;
  }
  const auto erase = [](size_t dim, Dims* dims) { dims->erase(At(dim, dims)); };
  ChangeDims(erase, &config->inputs);
  ChangeDims(erase, &config->outputs);
  for (Warmup& warmup : config->warmups) {
    for (auto& [name, input] : warmup.inputs) {
      const std::optional<size_t> dim = BatchDimOf(*config, name);
      if (dim && *dim < input.dims.size()) {
        warmup.batch_size = input.dims[*dim];
        erase(*dim, &input.dims);
      }
    }
  }
  config->max_batch_size = kDefaultMaxBatchSize;
  config->row_independence = RowIndependence::kDependent;
  config->row_independence_reason = std::move(reason);
  return true;
}

ModelConfig JoinBatchDim(ModelConfig config) {
  if (!config.batched() || config.has_independent_rows()) {
    return config;
  }
  const auto insert = [](size_t dim, Dims* dims) { dims->insert(At(dim, dims), -1); };
  ChangeDims(insert, &config.inputs);
  ChangeDims(insert, &config.outputs);
  for (Warmup& warmup : config.warmups) {
    for (auto& [name, input] : warmup.inputs) {
      if (const std::optional<size_t> dim = BatchDimOf(config, name)) {
        input.dims.insert(At(std::min(*dim, input.dims.size()), &input.dims), warmup.batch_size);
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

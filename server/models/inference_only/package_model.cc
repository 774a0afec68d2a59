#include "server/models/inference_only/package_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/inference_only/package_replica.h"
#include "server/models/name_binding.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

class PackageModel final : public Model {
 public:
  PackageModel(std::shared_ptr<const InferencePackage> package, ModelConfig config,
               std::vector<size_t> order)
      : package_(std::move(package)), config_(std::move(config)), order_(std::move(order)) {}

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(c10::Device device) const override {
    return PackageReplica::Create(package_, config_, order_, device);
  }

 private:
  const std::shared_ptr<const InferencePackage> package_;
  const ModelConfig config_;
  const std::vector<size_t> order_;
};

// Sizes above the least that a package takes: of rows, and of other dims that are of any size.
struct MoreThanLeast {
  int64_t rows = 0;
  int64_t others = 0;
};

// At least two rows: some packages have a case of their own for one.
constexpr int64_t kLeastRows = 2;

int64_t SizeOf(const PackageDim& dim, int64_t least, int64_t more) {
  return dim.fixed() ? dim.min : std::min(std::max(dim.min, least) + more, dim.max);
}

// A dim whose symbol is unknown may be the rows, too.
bool IsRows(const PackageInterface& interface, const PackageInput& input, size_t d) {
  const std::string& symbol = input.dims[d].symbol;
  const PackageInput& first = interface.inputs.front();
  return d == 0 || symbol.empty() || (!first.dims.empty() && symbol == first.dims.front().symbol);
}

std::vector<at::Tensor> RunZeros(PackageRunner& runner, const PackageInterface& interface,
                                 c10::Device device, MoreThanLeast more) {
  std::vector<at::Tensor> zeros;
  for (const PackageInput& input : interface.inputs) {
    if (input.number) {
      const ValueRange range = input.range.value_or(ValueRange{0, kLeastRows + 1});
      const PackageDim value{range.min, range.max};
      zeros.push_back(at::full({1}, SizeOf(value, kLeastRows, more.rows + more.others), at::kLong));
      continue;
    }
    std::vector<int64_t> shape;
    for (size_t d = 0; d < input.dims.size(); ++d) {
      shape.push_back(IsRows(interface, input, d) ? SizeOf(input.dims[d], kLeastRows, more.rows)
                                                  : SizeOf(input.dims[d], 1, more.others));
    }
    zeros.push_back(at::zeros(
        shape,
        at::TensorOptions(input.on_cpu ? c10::kCPU : device).dtype(ToScalarType(input.type))));
  }
  return runner.Run(zeros);
}

// Dim 0 of every input is of any size, of the same one as far as that is known.
bool MayBeBatched(const std::vector<PackageInput>& inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&inputs](const PackageInput& input) {
    return !input.dims.empty() && !input.dims.front().fixed() &&
           input.dims.front().symbol == inputs.front().dims.front().symbol;
  });
}

// A number may be a size.
bool HasOtherOpenDims(const std::vector<PackageInput>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const PackageInput& input) {
    if (input.number) {
      return true;
    }
    for (size_t d = 1; d < input.dims.size(); ++d) {
      if (!input.dims[d].fixed()) {
        return true;
      }
    }
    return false;
  });
}

// True if outputs have as many rows as the inputs, and no other dim that depends on them. few,
// more: the outputs for `rows` and `more_rows`. A number without dims is one for each chunk.
bool FollowRows(const std::vector<at::Tensor>& few, int64_t rows,
                const std::vector<at::Tensor>& more, int64_t more_rows) {
  for (size_t o = 0; o < few.size(); ++o) {
    if (few[o].dim() == 0 && more[o].dim() == 0) {
      continue;
    }
    if (few[o].dim() != more[o].dim() || few[o].size(0) != rows || more[o].size(0) != more_rows ||
        few[o].sizes().slice(1) != more[o].sizes().slice(1)) {
      return false;
    }
  }
  return true;
}

// Sizes that differ between two runs become -1.
absl::StatusOr<TensorSpec> SpecOf(std::string name, const at::Tensor& one, const at::Tensor& other,
                                  bool batched) {
  TensorSpec spec;
  spec.name = std::move(name);
  BRAID_RETURN_IF_ERROR(CheckDense(spec.name, one));
  if (!FromScalarType(one.scalar_type(), &spec.type)) {
    return absl::FailedPreconditionError(absl::StrCat("'", spec.name, "' is a ",
                                                      c10::toString(one.scalar_type()),
                                                      ", a type that cannot be sent"));
  }
  for (int64_t d = batched ? 1 : 0; d < one.dim(); ++d) {
    const bool same = one.dim() == other.dim() && one.size(d) == other.size(d);
    spec.dims.push_back(same ? one.size(d) : -1);
  }
  return spec;
}

// Fills in max_batch_size and the outputs of `config` from what the package returns for zeros.
absl::Status DeriveOutputs(const InferencePackage& package, c10::Device device,
                           ModelConfig* config) {
  BRAID_ASSIGN_OR_RETURN(const auto runner, package.MakeRunner(device));
  const PackageInterface& interface = package.interface();
  const bool open = HasOtherOpenDims(interface.inputs);
  const std::vector<at::Tensor> few = RunZeros(*runner, interface, device, {});
  bool batched = MayBeBatched(interface.inputs);
  if (batched) {
    const PackageDim& rows = interface.inputs.front().dims.front();
    const std::vector<at::Tensor> more = RunZeros(*runner, interface, device, {.rows = 1});
    batched = FollowRows(few, SizeOf(rows, kLeastRows, 0), more, SizeOf(rows, kLeastRows, 1));
  }
  const std::vector<at::Tensor> other =
      batched && !open
          ? few
          : RunZeros(*runner, interface, device, {.rows = batched ? 0 : 1, .others = 1});
  config->max_batch_size = batched ? kDefaultMaxBatchSize : 0;
  for (size_t o = 0; o < few.size(); ++o) {
    const bool named = o < interface.output_paths.size() && !interface.output_paths[o].empty();
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec,
                           SpecOf(named ? interface.output_paths[o] : absl::StrCat("output__", o),
                                  few[o], other[o], batched));
    spec.scalar = interface.numbers.contains(o);
    config->outputs.push_back(std::move(spec));
  }
  return absl::OkStatus();
}

// Whether dim 0 of all is one size, as that of a batch is which was not exported as dynamic.
bool HaveFixedRows(const std::vector<PackageInput>& inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&inputs](const PackageInput& input) {
    return !input.dims.empty() && input.dims.front().fixed() && !inputs.front().dims.empty() &&
           input.dims.front().min == inputs.front().dims.front().min;
  });
}

absl::StatusOr<ModelConfig> Derive(const InferencePackage& package, const std::string& name,
                                   c10::Device device) {
  const std::vector<PackageInput>& inputs = package.interface().inputs;
  ModelConfig config;
  config.name = name;
  config.rows_fixed = HaveFixedRows(inputs);
  BRAID_RETURN_IF_ERROR(DeriveOutputs(package, device, &config));
  for (const PackageInput& input : inputs) {
    TensorSpec spec{input.name, input.type, {}};
    for (size_t d = config.batched() ? 1 : 0; d < input.dims.size(); ++d) {
      spec.dims.push_back(input.dims[d].fixed() ? input.dims[d].min : -1);
    }
    config.inputs.push_back(std::move(spec));
  }
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> OpenPackage(std::shared_ptr<const InferencePackage> package,
                                                   const std::string& name,
                                                   std::optional<ModelConfig> config,
                                                   c10::Device device) {
  const c10::AutoGradMode no_grad(false);
  if (!config) {
    BRAID_ASSIGN_OR_RETURN(config, Derive(*package, name, device));
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<size_t> order,
                         BindPackageInputs(package->interface(), &*config));
  return std::make_unique<PackageModel>(std::move(package), *std::move(config), std::move(order));
}

}  // namespace braid

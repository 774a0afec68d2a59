#include "server/models/package_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/package_replica.h"
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

// What the package returns for zeros, each open size being `more` above the least.
std::vector<at::Tensor> RunZeros(PackageRunner& runner, const PackageInterface& interface,
                                 c10::Device device, int64_t more) {
  std::vector<at::Tensor> zeros;
  for (const PackageInput& input : interface.inputs) {
    std::vector<int64_t> shape;
    for (const PackageDim& dim : input.dims) {
      shape.push_back(dim.fixed() ? dim.min
                                  : std::min(std::max<int64_t>(dim.min, 1) + more, dim.max));
    }
    zeros.push_back(at::zeros(
        shape,
        at::TensorOptions(input.on_cpu ? c10::kCPU : device).dtype(ToScalarType(input.type))));
  }
  return runner.Run(zeros);
}

absl::StatusOr<std::vector<TensorSpec>> DeriveOutputs(const InferencePackage& package, bool batched,
                                                      c10::Device device) {
  BRAID_ASSIGN_OR_RETURN(const auto runner, package.MakeRunner(device));
  const PackageInterface& interface = package.interface();
  const std::vector<at::Tensor> few = RunZeros(*runner, interface, device, 0);
  const std::vector<at::Tensor> more = RunZeros(*runner, interface, device, 1);
  std::vector<TensorSpec> specs;
  for (size_t o = 0; o < few.size(); ++o) {
    const bool named = o < interface.output_paths.size() && !interface.output_paths[o].empty();
    TensorSpec spec;
    spec.name = named ? interface.output_paths[o] : absl::StrCat("output__", o);
    if (!FromScalarType(few[o].scalar_type(), &spec.type)) {
      return absl::FailedPreconditionError(absl::StrCat("'", spec.name, "' is a ",
                                                        c10::toString(few[o].scalar_type()),
                                                        ", a type that cannot be sent"));
    }
    for (int64_t d = batched ? 1 : 0; d < few[o].dim(); ++d) {
      spec.dims.push_back(few[o].size(d) == more[o].size(d) ? few[o].size(d) : -1);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
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
  const bool batched = std::all_of(inputs.begin(), inputs.end(), [](const PackageInput& input) {
    return !input.dims.empty() && !input.dims.front().fixed();
  });
  ModelConfig config;
  config.name = name;
  config.max_batch_size = batched ? kDefaultMaxBatchSize : 0;
  config.rows_fixed = HaveFixedRows(inputs);
  for (const PackageInput& input : inputs) {
    TensorSpec spec{input.name, input.type, {}};
    for (size_t d = batched ? 1 : 0; d < input.dims.size(); ++d) {
      spec.dims.push_back(input.dims[d].fixed() ? input.dims[d].min : -1);
    }
    config.inputs.push_back(std::move(spec));
  }
  BRAID_ASSIGN_OR_RETURN(config.outputs, DeriveOutputs(package, batched, device));
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

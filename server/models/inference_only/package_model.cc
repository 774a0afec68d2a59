#include "server/models/inference_only/package_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/inference_only/inference_package.h"
#include "server/models/model_config.h"
#include "server/models/name_binding.h"
#include "server/parallel/host_copy.h"
#include "server/parallel/replica.h"

namespace braid {
namespace {

// Alignment that compiled code assumes on GPUs. On CPUs it assumes the alignment of the type.
constexpr size_t kGpuAlignment = 16;

bool Aligned(const at::Tensor& tensor) {
  const size_t alignment = tensor.is_cuda() ? kGpuAlignment : tensor.element_size();
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % alignment == 0;
}

// Checks `spec` against the package's input. Clients may send any size for -1, so the package must
// not fix it. Configurations declare a size of 0 as -1.
absl::Status CheckDims(const PackageInput& input, std::optional<size_t> batch_dim,
                       const TensorSpec& spec) {
  const std::vector<int64_t>& dims = spec.reshape ? *spec.reshape : spec.dims;
  const size_t batch_dims = batch_dim ? 1 : 0;
  bool fits = spec.type == input.type && dims.size() + batch_dims == input.dims.size();
  for (size_t d = 0; fits && d < dims.size(); ++d) {
    const PackageDim& known = input.dims[d < batch_dim.value_or(0) ? d : d + batch_dims];
    fits = dims[d] < 0 ? !known.fixed() || known.max == 0
                       : dims[d] >= known.min && dims[d] <= known.max;
  }
  if (fits) {
    return absl::OkStatus();
  }
  std::vector<std::string> sizes;
  for (const int64_t dim : dims) {
    sizes.push_back(absl::StrCat(dim));
  }
  if (batch_dim) {
    sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(*batch_dim), "rows");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("input '", spec.name, "' is configured as ", DataTypeName(spec.type), "[",
                   absl::StrJoin(sizes, ", "), "] (model.pt2 takes ", DescribePackageInput(input),
                   "): correct the configuration, or export a model that fits it"));
}

// Pads `rows`, which are dim `dim`, to `count` rows with copies of the last one.
at::Tensor PadRows(const at::Tensor& rows, int64_t dim, int64_t count) {
  const int64_t have = rows.size(dim);
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[static_cast<size_t>(dim)] = count - have;
  return at::cat({rows, rows.narrow(dim, have - 1, 1).expand(shape)}, dim);
}

// Returns the dim of the batch in the package's tensor; nullopt if it has none.
std::optional<size_t> BatchDimOf(const ModelConfig& config, const TensorSpec& spec) {
  return config.has_batch_dim(spec) ? std::optional<size_t>(spec.batch_dim) : std::nullopt;
}

// Binds the package's inputs to those of `config` by name, NAME__<number> or position. Returns the
// index in `config` of each. Fills in the package's ranges and row limits.
// FAILED_PRECONDITION if they do not match.
absl::StatusOr<std::vector<size_t>> BindPackageInputs(const PackageInterface& interface,
                                                      ModelConfig* config) {
  std::vector<std::string> names;
  for (const PackageInput& input : interface.inputs) {
    names.push_back(input.name);
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<size_t> order, BindInputs(config->inputs, names));
  for (size_t p = 0; p < order.size(); ++p) {
    TensorSpec& spec = config->inputs[order[p]];
    const std::optional<size_t> batch_dim = BatchDimOf(*config, spec);
    BRAID_RETURN_IF_ERROR(CheckDims(interface.inputs[p], batch_dim, spec));
    if (!spec.range && interface.inputs[p].range) {
      spec.range = interface.inputs[p].range;
      spec.range_derived = true;
    }
    if (batch_dim) {
      const PackageDim& rows = interface.inputs[p].dims[*batch_dim];
      config->max_batch_size = std::min(config->max_batch_size, rows.max);
      config->min_rows = std::max(config->min_rows, rows.min);
      config->max_rows = std::min(config->max_rows, rows.max);
    }
  }
  return order;
}

// Replica that runs an InferencePackage. It has no parameters and no gradients.
class PackageReplica final : public Replica {
 public:
  // order: result of BindPackageInputs() for `config`. A batch with too few rows for the package is
  // padded with copies of its last row, whose outputs are dropped.
  static absl::StatusOr<std::unique_ptr<Replica>> Create(
      std::shared_ptr<const InferencePackage> package, ModelConfig config,
      std::vector<size_t> order, c10::Device device);

  absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                  Mode mode) override;

  // Always FAILED_PRECONDITION. A trainer checks this first, so the other training methods are not
  // used.
  absl::Status CheckTrainable(std::optional<c10::ScalarType> autocast) const override;
  absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(const std::vector<at::Tensor>&,
                                                             Mode) override {
    return NotTrainable();
  }
  absl::StatusOr<Gradients> Backward(const std::vector<at::Tensor>&, const OnGradient&) override {
    return NotTrainable();
  }
  void DropGraph() override {}
  const std::vector<Parameter>& parameters() const override { return no_parameters_; }
  void Freeze(size_t) override {}
  void BindParameter(size_t, const at::Tensor&) override {}
  void BindEntry(size_t, const at::Tensor&) override {}
  std::vector<at::Tensor> buffers() const override { return {}; }
  void SetBuffers(const std::vector<at::Tensor>&) override {}
  std::vector<StateEntry> state() const override { return {}; }
  absl::Status CheckStages(const std::vector<std::string>&) const override {
    return NotTrainable();
  }
  absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole&,
                                                      c10::Device) const override {
    return NotTrainable();
  }
  std::vector<NewFile> Files() const override { return {}; }

 private:
  absl::Status NotTrainable() const;

  PackageReplica(std::shared_ptr<const InferencePackage> package, ModelConfig config,
                 std::vector<size_t> order, std::unique_ptr<PackageRunner> runner);

  // Converts `input` to the package's input `index`.
  absl::StatusOr<at::Tensor> Prepare(size_t index, const at::Tensor& input) const;

  const std::shared_ptr<const InferencePackage> package_;
  const ModelConfig config_;
  const std::vector<size_t> order_;
  const std::vector<Parameter> no_parameters_;
  const std::unique_ptr<PackageRunner> runner_;
};

absl::StatusOr<std::unique_ptr<Replica>> PackageReplica::Create(
    std::shared_ptr<const InferencePackage> package, ModelConfig config, std::vector<size_t> order,
    c10::Device device) {
  BRAID_ASSIGN_OR_RETURN(auto runner, package->MakeRunner(device));
  return std::unique_ptr<Replica>(new PackageReplica(std::move(package), std::move(config),
                                                     std::move(order), std::move(runner)));
}

PackageReplica::PackageReplica(std::shared_ptr<const InferencePackage> package, ModelConfig config,
                               std::vector<size_t> order, std::unique_ptr<PackageRunner> runner)
    : package_(std::move(package)),
      config_(std::move(config)),
      order_(std::move(order)),
      runner_(std::move(runner)) {}

absl::Status PackageReplica::CheckTrainable(std::optional<c10::ScalarType> /*autocast*/) const {
  return NotTrainable();
}

absl::Status PackageReplica::NotTrainable() const {
  return absl::FailedPreconditionError(
      absl::StrCat("model '", config_.name, "' is ", package_->kind(),
                   ", which can be run but not trained (export it with braid.export to train it)"));
}

absl::StatusOr<at::Tensor> PackageReplica::Prepare(size_t index, const at::Tensor& input) const {
  const PackageInput& expected = package_->interface().inputs[index];
  const TensorSpec& spec = config_.inputs[order_[index]];
  at::Tensor tensor = ToModel(input, spec);
  const std::optional<size_t> batch_dim = BatchDimOf(config_, spec);
  DataType type = DataType::kBool;
  FromScalarType(tensor.scalar_type(), &type);
  BRAID_RETURN_IF_ERROR(CheckPackageShape(expected, type, tensor.sizes().vec(), batch_dim));
  if (expected.on_cpu) {
    tensor = tensor.to(c10::kCPU);
  }
  if (batch_dim) {
    const auto dim = static_cast<int64_t>(*batch_dim);
    const int64_t least = expected.dims[*batch_dim].min;
    tensor = tensor.size(dim) < least ? PadRows(tensor, dim, least) : tensor;
  }
  tensor = tensor.contiguous();
  // The package must not modify the request's memory.
  return Aligned(tensor) && !expected.mutated ? tensor : tensor.clone();
}

absl::StatusOr<std::vector<at::Tensor>> PackageReplica::Forward(
    const std::vector<at::Tensor>& inputs, Mode mode) {
  if (mode != Mode::kEval) {
    return NotTrainable();
  }
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> prepared;
  int64_t rows = 0;
  int64_t run_rows = 0;
  for (size_t p = 0; p < order_.size(); ++p) {
    const at::Tensor& input = inputs[order_[p]];
    BRAID_ASSIGN_OR_RETURN(at::Tensor tensor, Prepare(p, input));
    if (const auto dim = BatchDimOf(config_, config_.inputs[order_[p]])) {
      rows = input.size(0);
      const int64_t padded = tensor.size(static_cast<int64_t>(*dim));
      if (run_rows != 0 && run_rows != padded) {
        return absl::FailedPreconditionError(
            "model.pt2 needs different minimum numbers of rows for its inputs");
      }
      run_rows = padded;
    }
    prepared.push_back(std::move(tensor));
  }
  std::vector<OutputLeaf> leaves;
  const std::vector<std::string>& paths = package_->interface().output_paths;
  for (at::Tensor& output : runner_->Run(prepared)) {
    std::string path = leaves.size() < paths.size() ? paths[leaves.size()] : "";
    leaves.push_back({std::move(path), std::move(output)});
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<size_t> bound, BindOutputs(config_.outputs, leaves));
  std::vector<at::Tensor> outputs;
  for (size_t o = 0; o < bound.size(); ++o) {
    at::Tensor value = leaves[bound[o]].value;
    if (rows != run_rows) {
      if (value.dim() == 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("the batch has ", rows, " rows (expected at least ", run_rows,
                         ": output '", config_.outputs[o].name,
                         "' is one number for all rows, so model.pt2 cannot run a padded batch)"));
      }
      const auto dim = static_cast<int64_t>(config_.outputs[o].batch_dim);
      value = dim < value.dim() && value.size(dim) == run_rows ? value.narrow(dim, 0, rows) : value;
    }
    outputs.push_back(FromModel(value, config_.outputs[o]));
  }
  return outputs;
}

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

// Increments over the minimum sizes that a package takes: of rows, and of other dynamic dims.
struct SizeIncrement {
  int64_t rows = 0;
  int64_t others = 0;
};

// Some packages have a special case for one row.
constexpr int64_t kMinTestRows = 2;

int64_t SizeOf(const PackageDim& dim, int64_t min, int64_t more) {
  return dim.fixed() ? dim.min : std::min(std::max(dim.min, min) + more, dim.max);
}

// True if dim `d` is, or may be, the number of rows. Dims without a known symbol may be.
bool IsRows(const PackageInterface& interface, const PackageInput& input, size_t d) {
  const std::string& symbol = input.dims[d].symbol;
  const PackageInput& first = interface.inputs.front();
  return d == 0 || symbol.empty() || (!first.dims.empty() && symbol == first.dims.front().symbol);
}

std::vector<at::Tensor> RunZeros(PackageRunner& runner, const PackageInterface& interface,
                                 c10::Device device, SizeIncrement more) {
  std::vector<at::Tensor> zeros;
  for (const PackageInput& input : interface.inputs) {
    if (input.number) {
      const ValueRange range = input.range.value_or(ValueRange{0, kMinTestRows + 1});
      const PackageDim value{range.min, range.max};
      zeros.push_back(
          at::full({1}, SizeOf(value, kMinTestRows, more.rows + more.others), at::kLong));
      continue;
    }
    std::vector<int64_t> shape;
    for (size_t d = 0; d < input.dims.size(); ++d) {
      shape.push_back(IsRows(interface, input, d) ? SizeOf(input.dims[d], kMinTestRows, more.rows)
                                                  : SizeOf(input.dims[d], 1, more.others));
    }
    zeros.push_back(at::zeros(
        shape,
        at::TensorOptions(input.on_cpu ? c10::kCPU : device).dtype(ToScalarType(input.type))));
  }
  return runner.Run(zeros);
}

// True if dim 0 of every input is dynamic and, as far as known, has the same size.
bool MayBeBatched(const std::vector<PackageInput>& inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&inputs](const PackageInput& input) {
    return !input.dims.empty() && !input.dims.front().fixed() &&
           input.dims.front().symbol == inputs.front().dims.front().symbol;
  });
}

// True if an input has dynamic dims after dim 0, or is a number, which may be a size.
bool HasOtherDynamicDims(const std::vector<PackageInput>& inputs) {
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

// True if outputs have as many rows as the inputs, and no other dim depends on the number of rows.
// few, more: outputs for `rows` and `more_rows` rows. 0-dim outputs are one number per chunk.
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

// Describes an output. Sizes that differ between two runs become -1.
absl::StatusOr<TensorSpec> SpecOf(std::string name, const at::Tensor& one, const at::Tensor& other,
                                  bool batched) {
  TensorSpec spec;
  spec.name = std::move(name);
  BRAID_RETURN_IF_ERROR(CheckDense(spec.name, one));
  if (!FromScalarType(one.scalar_type(), &spec.type)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", spec.name, "' has the unsupported datatype ", c10::toString(one.scalar_type())));
  }
  for (int64_t d = batched ? 1 : 0; d < one.dim(); ++d) {
    const bool same = one.dim() == other.dim() && one.size(d) == other.size(d);
    spec.dims.push_back(same ? one.size(d) : -1);
  }
  return spec;
}

// Runs the package on zeros and fills in max_batch_size and the outputs of `config`.
absl::Status DeriveOutputs(const InferencePackage& package, c10::Device device,
                           ModelConfig* config) {
  BRAID_ASSIGN_OR_RETURN(const auto runner, package.MakeRunner(device));
  const PackageInterface& interface = package.interface();
  const bool dynamic = HasOtherDynamicDims(interface.inputs);
  const std::vector<at::Tensor> few = RunZeros(*runner, interface, device, {});
  bool batched = MayBeBatched(interface.inputs);
  if (batched) {
    const PackageDim& rows = interface.inputs.front().dims.front();
    const std::vector<at::Tensor> more = RunZeros(*runner, interface, device, {.rows = 1});
    batched = FollowRows(few, SizeOf(rows, kMinTestRows, 0), more, SizeOf(rows, kMinTestRows, 1));
  }
  const std::vector<at::Tensor> other =
      batched && !dynamic
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

// True if dim 0 of all inputs has the same fixed size, like a batch dimension that was not exported
// as dynamic.
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
  config.fixed_rows = HaveFixedRows(inputs);
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

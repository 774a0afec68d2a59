#include "server/models/inference_only/package_replica.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/name_binding.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

// What the compiler of the package took for granted of a GPU's memory; on a CPU elements have to
// lie where their type may.
constexpr size_t kGpuAlignment = 16;

bool Aligned(const at::Tensor& tensor) {
  const size_t alignment = tensor.is_cuda() ? kGpuAlignment : tensor.element_size();
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % alignment == 0;
}

// The sizes of `spec` as the module has them, and what the package says of them.
absl::Status FitDims(const PackageInput& input, bool batched, TensorSpec* spec) {
  std::vector<int64_t>& dims = spec->reshape ? *spec->reshape : spec->dims;
  const size_t batch = batched ? 1 : 0;
  bool fits = spec->type == input.type && dims.size() + batch == input.dims.size();
  for (size_t d = 0; fits && d < dims.size(); ++d) {
    const PackageDim& known = input.dims[d + batch];
    fits = dims[d] < 0 || (dims[d] >= known.min && dims[d] <= known.max);
    if (fits && known.fixed() && !spec->reshape) {
      dims[d] = known.min;
    }
  }
  if (fits) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the configuration says that input '", spec->name, "' is ",
                   DataTypeName(spec->type), "[", batched ? "rows, " : "",
                   absl::StrJoin(dims, ", "), "]; model.pt2 takes ", DescribePackageInput(input)));
}

at::Tensor FillUp(const at::Tensor& rows, int64_t wanted) {
  const int64_t have = rows.size(0);
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = wanted - have;
  return at::cat({rows, rows.narrow(0, have - 1, 1).expand(shape)});
}

}  // namespace

absl::StatusOr<std::vector<size_t>> BindPackageInputs(const PackageInterface& interface,
                                                      ModelConfig* config) {
  std::vector<std::string> names;
  for (const PackageInput& input : interface.inputs) {
    names.push_back(input.name);
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<size_t> order, BindInputs(config->inputs, names));
  for (size_t p = 0; p < order.size(); ++p) {
    TensorSpec& spec = config->inputs[order[p]];
    const bool batched = config->has_batch_dim(spec);
    BRAID_RETURN_IF_ERROR(FitDims(interface.inputs[p], batched, &spec));
    if (!spec.range && interface.inputs[p].range) {
      spec.range = interface.inputs[p].range;
      spec.range_found = true;
    }
    if (batched) {
      config->max_batch_size = std::min(config->max_batch_size, interface.inputs[p].dims[0].max);
      config->least_rows = std::max(config->least_rows, interface.inputs[p].dims[0].min);
    }
  }
  return order;
}

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
  return absl::FailedPreconditionError(absl::StrCat(
      "model '", config_.name, "' is ", package_->kind(),
      " (model.pt2), which can be run but not trained; train it from an exported pair, as "
      "braid.export writes it"));
}

absl::StatusOr<at::Tensor> PackageReplica::Prepare(size_t index, const at::Tensor& input) const {
  const PackageInput& wanted = package_->interface().inputs[index];
  const TensorSpec& spec = config_.inputs[order_[index]];
  at::Tensor tensor = ToModel(input, spec);
  const bool batched = config_.has_batch_dim(spec);
  DataType type = DataType::kBool;
  FromScalarType(tensor.scalar_type(), &type);
  BRAID_RETURN_IF_ERROR(CheckPackageShape(wanted, type, tensor.sizes().vec(), batched));
  if (wanted.on_cpu) {
    tensor = tensor.to(c10::kCPU);
  }
  if (batched && tensor.size(0) < wanted.dims[0].min) {
    tensor = FillUp(tensor, wanted.dims[0].min);
  }
  tensor = tensor.contiguous();
  // What is written to must not be the request's memory.
  return Aligned(tensor) && !wanted.written ? tensor : tensor.clone();
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
    if (config_.has_batch_dim(config_.inputs[order_[p]])) {
      rows = input.size(0);
      if (run_rows != 0 && run_rows != tensor.size(0)) {
        return absl::FailedPreconditionError(
            "model.pt2 was made for different numbers of rows of its inputs");
      }
      run_rows = tensor.size(0);
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
            absl::StrCat("output '", config_.outputs[o].name, "' is one number for ", run_rows,
                         " rows, the fewest that model.pt2 was made for; the batch has ", rows));
      }
      value = value.size(0) == run_rows ? value.narrow(0, 0, rows) : value;
    }
    outputs.push_back(FromModel(value, config_.outputs[o]));
  }
  return outputs;
}

}  // namespace braid

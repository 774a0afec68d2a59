#include "server/training/loss.h"

#include <utility>

#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/isnan.h"
#include "ATen/ops/mse_loss.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/parallel/host_copy.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

// Compute() sees the one target that PickTarget() found: it was the only one.
constexpr absl::string_view kTargetField = "targets[0]";

absl::StatusOr<size_t> OutputIndex(const LossSpec& spec, const ModelConfig& config) {
  std::string names;
  for (size_t o = 0; o < config.outputs.size(); ++o) {
    if (spec.output.empty() || config.outputs[o].name == spec.output) {
      return o;
    }
    absl::StrAppend(&names, o > 0 ? ", " : "", "'", config.outputs[o].name, "'");
  }
  return InvalidField("loss.output", absl::StrCat("model '", config.name, "' has no output '",
                                                  spec.output, "'; it has ", names));
}

absl::StatusOr<LossKind> KindOf(const LossSpec& spec) {
  if (spec.name == "cross_entropy") {
    return LossKind::kCrossEntropy;
  }
  if (spec.name == "mse") {
    return LossKind::kMse;
  }
  return InvalidField("loss.name", absl::StrCat("there is no loss '", Excerpt(spec.name),
                                                "'; expected cross_entropy or mse"));
}

absl::Status CheckParameters(const LossSpec& spec, LossKind kind) {
  if (!(spec.label_smoothing >= 0 && spec.label_smoothing <= 1)) {
    return InvalidField("loss.label_smoothing",
                        absl::StrCat(spec.label_smoothing, " is out of range; expected 0 to 1"));
  }
  if (kind != LossKind::kCrossEntropy && spec.ignore_index) {
    return InvalidField("loss.ignore_index",
                        absl::StrCat("is cross_entropy's; '", spec.name, "' has none"));
  }
  if (kind != LossKind::kCrossEntropy && spec.label_smoothing != 0) {
    return InvalidField("loss.label_smoothing",
                        absl::StrCat("is cross_entropy's; '", spec.name, "' has none"));
  }
  return absl::OkStatus();
}

// The row of the first true element of a mask.
int64_t FirstRow(const at::Tensor& mask) {
  const int64_t first = mask.flatten().nonzero()[0].item<int64_t>();
  return first / std::max<int64_t>(mask.numel() / mask.size(0), 1);
}

absl::Status CheckNan(const at::Tensor& target) {
  const at::Tensor nan = at::isnan(target);
  if (!nan.any().item<bool>()) {
    return absl::OkStatus();
  }
  return InvalidField(kTargetField,
                      absl::StrCat("holds NaN in row ", FirstRow(nan), "; expected numbers"));
}

}  // namespace

absl::StatusOr<Loss> Loss::Create(LossSpec spec, const ModelConfig& config) {
  BRAID_ASSIGN_OR_RETURN(const LossKind kind, KindOf(spec));
  BRAID_RETURN_IF_ERROR(CheckParameters(spec, kind));
  BRAID_ASSIGN_OR_RETURN(const size_t output, OutputIndex(spec, config));
  if (!IsFloatingPoint(config.outputs[output].type)) {
    return InvalidField(
        "loss.output",
        absl::StrCat("output '", config.outputs[output].name, "' is ",
                     DataTypeName(config.outputs[output].type), "; expected a floating-point one"));
  }
  spec.output = config.outputs[output].name;
  if (spec.target.empty()) {
    spec.target = "target";
  }
  if (kind == LossKind::kCrossEntropy && !spec.ignore_index) {
    spec.ignore_index = -100;
  }
  return Loss(std::move(spec), kind, output);
}

absl::StatusOr<HostTensor> Loss::PickTarget(const std::vector<HostTensor>& targets,
                                            int64_t rows) const {
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::string field = absl::StrCat("targets[", i, "]");
    if (targets[i].name != spec_.target) {
      return InvalidField(field + ".name",
                          absl::StrCat("the loss takes no target '", targets[i].name,
                                       "'; it takes '", spec_.target, "'"));
    }
    if (i > 0) {
      return InvalidField(field + ".name", absl::StrCat("target '", spec_.target,
                                                        "' is there twice; expected once"));
    }
    if (targets[i].shape.empty() || targets[i].rows() != rows) {
      return InvalidField(field + ".shape", absl::StrCat("target '", spec_.target, "' has shape ",
                                                         ShapeString(targets[i].shape),
                                                         "; expected the inputs' ", rows, " rows"));
    }
  }
  if (targets.empty()) {
    return InvalidField("targets", absl::StrCat("target '", spec_.target, "' is missing"));
  }
  return targets.front();
}

absl::Status Loss::CheckTarget(const at::Tensor& output, const HostTensor& target) const {
  if (kind_ == LossKind::kCrossEntropy && output.dim() < 2) {
    return InvalidField("loss.output", absl::StrCat("'", spec_.output, "' has shape ",
                                                    ShapeString(output.sizes().vec()),
                                                    "; cross_entropy takes [rows, classes, ...]"));
  }
  DataType type = DataType::kFp32;
  FromScalarType(output.scalar_type(), &type);
  const std::vector<int64_t> whole = output.sizes().vec();
  std::string right = absl::StrCat(DataTypeName(type), " ", ShapeString(whole));
  if (target.type == type && target.shape == whole) {
    if (kind_ == LossKind::kCrossEntropy && *spec_.ignore_index >= 0) {
      return InvalidField(absl::StrCat(kTargetField, ".datatype"),
                          absl::StrCat("target '", spec_.target, "' is ", DataTypeName(target.type),
                                       " (class probabilities); a loss with ignore_index ",
                                       *spec_.ignore_index, " takes INT64 (class indices)"));
    }
    return absl::OkStatus();
  }
  if (kind_ == LossKind::kCrossEntropy) {
    std::vector<int64_t> classes = whole;
    classes.erase(classes.begin() + 1);
    if (target.type == DataType::kInt64 && target.shape == classes) {
      return absl::OkStatus();
    }
    right = absl::StrCat("INT64 ", ShapeString(classes), " (class indices) or ", right,
                         " (class probabilities)");
  }
  const bool type_fits =
      target.type == type || (kind_ == LossKind::kCrossEntropy && target.type == DataType::kInt64);
  return InvalidField(absl::StrCat(kTargetField, type_fits ? ".shape" : ".datatype"),
                      absl::StrCat("target '", spec_.target, "' is ", DataTypeName(target.type),
                                   " ", ShapeString(target.shape), "; ", spec_.name, " of output '",
                                   spec_.output, "' takes ", right));
}

absl::Status Loss::CheckClasses(const at::Tensor& output, const at::Tensor& target) const {
  const int64_t classes = output.size(1);
  const at::Tensor wrong =
      target.lt(0).logical_or(target.ge(classes)).logical_and(target.ne(*spec_.ignore_index));
  if (!wrong.any().item<bool>()) {
    return absl::OkStatus();
  }
  const int64_t index = target.masked_select(wrong)[0].item<int64_t>();
  return InvalidField(
      kTargetField,
      absl::StrCat("class index ", index, " in row ", FirstRow(wrong), " is out of range; output '",
                   spec_.output, "' has ", classes, " classes: expected 0 to ", classes - 1));
}

at::Tensor Loss::Evaluate(const at::Tensor& output, const at::Tensor& target) const {
  const int64_t reduction =
      spec_.reduction == Reduction::kMean ? at::Reduction::Mean : at::Reduction::Sum;
  if (kind_ == LossKind::kMse) {
    return at::mse_loss(output, target, reduction);
  }
  return at::cross_entropy_loss(output, target, {}, reduction, *spec_.ignore_index,
                                spec_.label_smoothing);
}

absl::StatusOr<LossValue> Loss::Compute(const at::Tensor& output, const HostTensor& target,
                                        bool with_gradient) const {
  BRAID_RETURN_IF_ERROR(CheckTarget(output, target));
  const at::Tensor expected = View(target).to(output.device());
  if (expected.is_floating_point()) {
    BRAID_RETURN_IF_ERROR(CheckNan(expected));
  } else {
    BRAID_RETURN_IF_ERROR(CheckClasses(output, expected));
  }
  const c10::AutoGradMode grad(with_gradient);
  const at::Tensor leaf = output.detach().requires_grad_(with_gradient);
  const at::Tensor loss = Evaluate(leaf, expected);
  LossValue value;
  value.loss = loss.item<double>();
  if (with_gradient) {
    value.output_gradient = torch::autograd::grad({loss}, {leaf})[0];
  }
  return value;
}

}  // namespace braid

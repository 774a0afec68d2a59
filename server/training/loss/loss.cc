#include "server/training/loss/loss.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ATen/ops/binary_cross_entropy_with_logits.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/huber_loss.h"
#include "ATen/ops/kl_div.h"
#include "ATen/ops/l1_loss.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/nll_loss_nd.h"
#include "ATen/ops/smooth_l1_loss.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/parallel/host_copy.h"
#include "server/training/loss/loss_module.h"

namespace braid {
namespace {

bool NeedsClasses(LossKind kind) {
  return kind == LossKind::kCrossEntropy || kind == LossKind::kNll;
}

// Returns the denominator of a mean per row, for a target of `shape` that does not hold class
// indices.
double NumbersOfRow(LossKind kind, const std::vector<int64_t>& shape) {
  double numbers = 1;
  for (size_t d = 1; d < shape.size(); ++d) {
    // The probabilities of one row over the classes count as one value.
    numbers *= d == 1 && NeedsClasses(kind) ? 1 : static_cast<double>(shape[d]);
  }
  return numbers;
}

// Returns `host` on the device of `output`.
at::Tensor ToDevice(const at::Tensor& host, const at::Tensor& output, Staging* staging) {
  return staging != nullptr && staging->device() == output.device() ? staging->Upload(host)
                                                                    : host.to(output.device());
}

// Returns `weights` as an argument of ATen's losses; nullopt if there are none.
std::optional<at::Tensor> WeightsFor(const at::Tensor& output, const std::vector<double>& weights,
                                     Staging* staging) {
  if (weights.empty()) {
    return std::nullopt;
  }
  return ToDevice(at::tensor(weights, at::kDouble).to(output.scalar_type()), output, staging);
}

std::vector<int64_t> PosWeightShape(const LossSpec& spec) {
  return spec.pos_weight_shape.empty()
             ? std::vector<int64_t>{static_cast<int64_t>(spec.pos_weight.size())}
             : spec.pos_weight_shape;
}

// Returns whether `shape` broadcasts to any number of rows of `output`; -1: unknown.
bool BroadcastsToRows(const std::vector<int64_t>& shape, const std::vector<int64_t>& output) {
  if (shape.size() > output.size() || (shape.size() == output.size() && shape.front() != 1)) {
    return false;
  }
  return std::equal(shape.rbegin(), shape.rend(), output.rbegin(), [](int64_t dim, int64_t other) {
    return dim == 1 || other < 0 || dim == other;
  });
}

}  // namespace

absl::StatusOr<Loss> Loss::Create(LossSpec spec, LossMode mode, const std::string& field,
                                  const ModelConfig& config) {
  BRAID_ASSIGN_OR_RETURN(const LossKind kind, CheckLossSpec(mode, field, &spec));
  Loss loss(std::move(spec), kind, field);
  BRAID_RETURN_IF_ERROR(loss.TakeOutput(config));
  if (kind == LossKind::kModule) {
    BRAID_ASSIGN_OR_RETURN(loss.module_, LossModule::Load(loss.spec_.module, field + ".module"));
  }
  return loss;
}

absl::Status Loss::TakeOutput(const ModelConfig& config) {
  std::string names;
  for (size_t o = 0; o < config.outputs.size(); ++o) {
    const TensorSpec& output = config.outputs[o];
    if (!spec_.output.empty() && output.name != spec_.output) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", "'", output.name, "'");
      continue;
    }
    if (!IsFloatingPoint(output.type)) {
      return InvalidField(field_ + ".output",
                          absl::StrCat("output '", output.name, "' is ", DataTypeName(output.type),
                                       "; expected a floating-point one"));
    }
    spec_.output = output.name;
    output_index_ = o;
    type_ = output.type;
    return absl::OkStatus();
  }
  return InvalidField(field_ + ".output", absl::StrCat("model '", config.name, "' has no output '",
                                                       Excerpt(spec_.output), "'; it has ", names));
}

absl::StatusOr<double> Loss::Denominator(const TargetRows& rows) const {
  if (spec_.reduction == Reduction::kSum) {
    return 1.0;
  }
  if (rows.target == nullptr || kind_ == LossKind::kModule ||
      spec_.reduction == Reduction::kBatchMean) {
    return static_cast<double>(rows.rows);
  }
  if (!HoldsClasses(kind_, *rows.target)) {
    return static_cast<double>(rows.rows) * NumbersOfRow(kind_, rows.target->shape);
  }
  const std::vector<double>& weights = spec_.class_weights;
  const ClassIndices indices(rows);
  double sum = 0;
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = indices[i];
    if (index == spec_.ignore_index) {
      continue;
    }
    if (weights.empty()) {
      sum += 1;
    } else if (index >= 0 && index < static_cast<int64_t>(weights.size())) {
      sum += weights[static_cast<size_t>(index)];
    } else {
      return InvalidField(rows.target->name,
                          absl::StrCat("class index ", index, " in row ", indices.row(i),
                                       " is out of range; ", field_, ".class_weights has ",
                                       weights.size(), ": expected 0 to ", weights.size() - 1));
    }
  }
  return sum;
}

absl::Status Loss::CheckTarget(const std::vector<int64_t>& output, const HostTensor& target) const {
  const auto is_known = [](int64_t dim) { return dim >= 0; };
  BRAID_RETURN_IF_ERROR(CheckOutput(output, 1));
  BRAID_RETURN_IF_ERROR(CheckWeights(output));
  if (kind_ == LossKind::kModule || kind_ == LossKind::kModel ||
      !std::all_of(output.begin() + 1, output.end(), is_known) ||
      !std::ranges::all_of(target.shape, is_known)) {
    return absl::OkStatus();
  }
  return CheckTargetForm(kind_, spec_, type_, output, target);
}

absl::StatusOr<at::Tensor> Loss::Compute(const at::Tensor& output, const TargetRows& rows) const {
  const std::vector<int64_t> shape = output.sizes().vec();
  BRAID_RETURN_IF_ERROR(CheckOutput(shape, rows.rows));
  const at::Tensor prediction = output.to(ToScalarType(type_));
  if (kind_ == LossKind::kModel) {
    return OfModel(prediction);
  }
  const at::Tensor view = ViewRows(*rows.target, rows.start, rows.rows);
  if (kind_ == LossKind::kModule) {
    // Copies, because the module may keep or modify its arguments.
    return module_->Compute(prediction.clone(),
                            view.to(output.device(), view.scalar_type(), /*non_blocking=*/false,
                                    /*copy=*/true));
  }
  BRAID_RETURN_IF_ERROR(CheckTargetForm(kind_, spec_, type_, shape, *rows.target));
  BRAID_RETURN_IF_ERROR(CheckWeights(shape));
  if (HoldsClasses(kind_, *rows.target)) {
    BRAID_RETURN_IF_ERROR(CheckClasses(spec_, output.size(1), rows));
  } else {
    BRAID_RETURN_IF_ERROR(CheckValues(view, kind_ == LossKind::kBceWithLogits, rows));
  }
  return Evaluate(prediction, ToDevice(view, output, rows.staging), rows.staging);
}

absl::Status Loss::CheckAddsUp(const at::Tensor& output, const HostTensor& target) const {
  if (kind_ != LossKind::kModule || output.dim() < 1) {
    return absl::OkStatus();
  }
  const at::Tensor targets = View(target);
  return module_->IsProven(targets)
             ? absl::OkStatus()
             : module_->Prove(output.detach().to(ToScalarType(type_)), targets, spec_.reduction);
}

absl::Status Loss::CheckOutput(const std::vector<int64_t>& output, int64_t rows) const {
  absl::string_view expected;
  if (kind_ == LossKind::kModel) {
    if (output.size() > 1 || (output.size() == 1 && output[0] == 0)) {
      expected = "the loss itself, 0-dim or one value per row";
    }
  } else if (NeedsClasses(kind_) && output.size() < 2) {
    expected = "[rows, classes, ...]";
  } else if (output.empty() || (output[0] >= 0 && output[0] != rows)) {
    expected = "as many rows as the target";
  }
  if (expected.empty()) {
    return absl::OkStatus();
  }
  return InvalidField(field_ + ".output",
                      absl::StrCat("output '", spec_.output, "' has shape ", ShapeString(output),
                                   "; expected ", expected));
}

absl::Status Loss::CheckWeights(const std::vector<int64_t>& output) const {
  const auto differ = [](size_t weights, int64_t dim) {
    return dim >= 0 && static_cast<int64_t>(weights) != dim;
  };
  if (NeedsClasses(kind_) && !spec_.class_weights.empty() &&
      differ(spec_.class_weights.size(), output[1])) {
    return InvalidField(field_ + ".class_weights",
                        absl::StrCat("holds ", spec_.class_weights.size(), "; output '",
                                     spec_.output, "' has ", output[1], " classes"));
  }
  const std::vector<int64_t> positive = PosWeightShape(spec_);
  if (spec_.pos_weight.size() <= 1 || BroadcastsToRows(positive, output)) {
    return absl::OkStatus();
  }
  return InvalidField(
      field_ + ".pos_weight",
      absl::StrCat("has shape ", ShapeString(positive), ", which does not broadcast to the rows ",
                   "of output '", spec_.output, "', ", ShapeString(output),
                   " (expected sizes of 1 or the output's, from the last dimension, and 1 for the "
                   "dimension of the rows)"));
}

at::Tensor Loss::Evaluate(const at::Tensor& output, const at::Tensor& target,
                          Staging* staging) const {
  const int64_t reduction =
      spec_.reduction == Reduction::kMean ? at::Reduction::Mean : at::Reduction::Sum;
  switch (kind_) {
    case LossKind::kCrossEntropy:
      return at::cross_entropy_loss(output, target,
                                    WeightsFor(output, spec_.class_weights, staging), reduction,
                                    *spec_.ignore_index, spec_.label_smoothing);
    case LossKind::kNll:
      return at::nll_loss_nd(output, target, WeightsFor(output, spec_.class_weights, staging),
                             reduction, *spec_.ignore_index);
    case LossKind::kMse:
      return at::mse_loss(output, target, reduction);
    case LossKind::kL1:
      return at::l1_loss(output, target, reduction);
    case LossKind::kSmoothL1:
      return at::smooth_l1_loss(output, target, reduction, *spec_.beta);
    case LossKind::kHuber:
      return at::huber_loss(output, target, reduction, *spec_.delta);
    case LossKind::kBceWithLogits:
      return at::binary_cross_entropy_with_logits(output, target, /*weight=*/{},
                                                  PosWeightFor(output, staging), reduction);
    case LossKind::kKlDiv:
      return spec_.reduction == Reduction::kBatchMean
                 ? at::kl_div(output, target, reduction, spec_.log_target).div(output.size(0))
                 : at::kl_div(output, target, reduction, spec_.log_target);
    case LossKind::kModule:
    case LossKind::kModel:
      break;
  }
  return OfModel(output);
}

std::optional<at::Tensor> Loss::PosWeightFor(const at::Tensor& output, Staging* staging) const {
  const std::optional<at::Tensor> weights = WeightsFor(output, spec_.pos_weight, staging);
  return weights ? weights->view(PosWeightShape(spec_)) : weights;
}

at::Tensor Loss::OfModel(const at::Tensor& output) const {
  return spec_.reduction == Reduction::kMean ? output.mean() : output.sum();
}

}  // namespace braid

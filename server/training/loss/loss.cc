#include "server/training/loss/loss.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ATen/ops/binary_cross_entropy_with_logits.h"
#include "ATen/ops/cosine_embedding_loss.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/ctc_loss.h"
#include "ATen/ops/huber_loss.h"
#include "ATen/ops/kl_div.h"
#include "ATen/ops/l1_loss.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/nll_loss_nd.h"
#include "ATen/ops/poisson_nll_loss.h"
#include "ATen/ops/smooth_l1_loss.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/triplet_margin_loss.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/parallel/host_copy.h"
#include "server/training/loss/loss_functions.h"
#include "server/training/loss/loss_module.h"

namespace braid {
namespace {

using enum LossKind;

bool HasClassWeights(LossKind kind) {
  return kind == kCrossEntropy || kind == kNll || kind == kFocal;
}

// Returns true for a loss whose mean divides by the number of rows.
bool CountsRows(LossKind kind) {
  return kind == kModule || kind == kDice || kind == kCosineEmbedding || kind == kTripletMargin ||
         kind == kCtc;
}

// Returns the denominator of a mean per row, for a target of `shape` that does not hold class
// indices.
double NumbersOfRow(LossKind kind, const std::vector<int64_t>& shape) {
  double numbers = 1;
  for (size_t d = 1; d < shape.size(); ++d) {
    // The probabilities of one row over the classes count as one value.
    numbers *= d == 1 && kind == kCrossEntropy ? 1 : static_cast<double>(shape[d]);
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

bool MayEqual(const std::vector<int64_t>& one, const std::vector<int64_t>& other) {
  return std::ranges::equal(one, other,
                            [](int64_t a, int64_t b) { return a == b || a < 0 || b < 0; });
}

// Returns whether gaussian_nll takes a variance of this shape, as PyTorch does.
bool IsVarianceOf(const std::vector<int64_t>& mean, const std::vector<int64_t>& variance) {
  if (MayEqual(mean, variance)) {
    return true;
  }
  if (mean.size() != variance.size()) {
    return MayEqual({mean.begin(), mean.end() - 1}, variance);
  }
  int64_t shared = 0;
  for (size_t d = 0; d < mean.size(); ++d) {
    if (mean[d] != variance[d] && mean[d] >= 0 && variance[d] >= 0) {
      shared += variance[d] == 1 ? 1 : 2;
    }
  }
  return shared == 1;
}

// Returns what a loss of `kind` expects of an output's shape; empty: `output` fits, except perhaps
// for its rows.
absl::string_view ExpectedDims(LossKind kind, const std::vector<int64_t>& output) {
  const size_t dims = output.size();
  switch (kind) {
    case kModel:
      return dims > 1 || (dims == 1 && output[0] == 0)
                 ? "the loss itself, 0-dim or one value per row"
                 : "";
    case kCrossEntropy:
    case kNll:
    case kFocal:
      return dims < 2 ? "[rows, classes, ...]" : "";
    case kDice:
      return dims < 3 ? "[rows, classes, positions, ...]" : "";
    case kCosineEmbedding:
    case kTripletMargin:
      return dims != 2 ? "[rows, features]" : "";
    case kCtc:
      return dims != 3 ? "[rows, time steps, classes]" : "";
    default:
      return "";
  }
}

}  // namespace

absl::StatusOr<Loss> Loss::Create(LossSpec spec, LossMode mode, const std::string& field,
                                  const ModelConfig& config) {
  BRAID_ASSIGN_OR_RETURN(const LossKind kind, CheckLossSpec(mode, field, &spec));
  Loss loss(std::move(spec), kind, field);
  BRAID_RETURN_IF_ERROR(loss.TakeOutputs(config));
  if (kind == kModule) {
    BRAID_ASSIGN_OR_RETURN(loss.module_, LossModule::Load(loss.spec_.module, field + ".module"));
  }
  return loss;
}

const std::string& Loss::output_name() const {
  return spec_.outputs.empty() ? spec_.output : spec_.outputs.front();
}

std::string Loss::OutputField(size_t i) const {
  return OutputRoles(kind_).empty() ? field_ + ".output"
                                    : absl::StrCat(field_, ".outputs[", i, "]");
}

std::vector<at::Tensor> Loss::Select(const std::vector<at::Tensor>& outputs) const {
  std::vector<at::Tensor> selected;
  for (const size_t o : outputs_) {
    selected.push_back(outputs[o]);
  }
  return selected;
}

absl::Status Loss::TakeOutputs(const ModelConfig& config) {
  const size_t roles = OutputRoles(kind_).size();
  if (roles == 0) {
    BRAID_ASSIGN_OR_RETURN(spec_.output, TakeOutput(config, spec_.output, 0));
    return absl::OkStatus();
  }
  if (spec_.outputs.empty() && config.outputs.size() < roles) {
    return InvalidField(field_ + ".outputs",
                        absl::StrCat("model '", config.name, "' has ", config.outputs.size(),
                                     " outputs; ", spec_.name, " takes ", roles));
  }
  spec_.outputs.resize(roles);
  for (size_t i = 0; i < roles; ++i) {
    BRAID_ASSIGN_OR_RETURN(spec_.outputs[i], TakeOutput(config, spec_.outputs[i], i));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Loss::TakeOutput(const ModelConfig& config, const std::string& name,
                                             size_t index) {
  const std::string field = OutputField(outputs_.size());
  std::string names;
  for (size_t o = 0; o < config.outputs.size(); ++o) {
    const TensorSpec& output = config.outputs[o];
    if (name.empty() ? o != index : output.name != name) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", "'", output.name, "'");
      continue;
    }
    if (!IsFloatingPoint(output.type)) {
      return InvalidField(field,
                          absl::StrCat("output '", output.name, "' is ", DataTypeName(output.type),
                                       " (expected a floating-point one)"));
    }
    if (kind_ == kCtc && output.type != DataType::kFp32 && output.type != DataType::kFp64) {
      return InvalidField(field,
                          absl::StrCat("output '", output.name, "' is ", DataTypeName(output.type),
                                       "; ctc takes FP32 or FP64"));
    }
    if (!outputs_.empty() && output.type != type_) {
      return InvalidField(field,
                          absl::StrCat("output '", output.name, "' is ", DataTypeName(output.type),
                                       " (expected ", DataTypeName(type_), ", as the first one)"));
    }
    if (outputs_.empty() && kind_ != kCtc) {
      target_batch_dim_ = output.batch_dim;
    }
    outputs_.push_back(o);
    type_ = output.type;
    return output.name;
  }
  return InvalidField(field, absl::StrCat("model '", config.name, "' has no output '",
                                          Excerpt(name), "'; it has ", names));
}

absl::StatusOr<double> Loss::Denominator(const TargetRows& rows) const {
  if (spec_.reduction == Reduction::kSum) {
    return 1.0;
  }
  if (rows.targets.empty() || CountsRows(kind_) || spec_.reduction == Reduction::kBatchMean) {
    return static_cast<double>(rows.rows);
  }
  if (!HoldsClasses(kind_, rows.target())) {
    return static_cast<double>(rows.rows) * NumbersOfRow(kind_, rows.target().shape);
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
      return InvalidField(rows.target().name,
                          absl::StrCat("class index ", index, " in row ", indices.row(i),
                                       " is out of range (expected 0 to ", weights.size() - 1, ": ",
                                       field_, ".class_weights has ", weights.size(), ")"));
    }
  }
  return sum;
}

absl::Status Loss::CheckTargets(const std::vector<std::vector<int64_t>>& outputs,
                                absl::Span<const HostTensor> targets) const {
  const auto is_known = [](int64_t dim) { return dim >= 0; };
  BRAID_RETURN_IF_ERROR(CheckOutputs(outputs, 1));
  const std::vector<int64_t>& output = outputs.front();
  BRAID_RETURN_IF_ERROR(CheckWeights(output));
  if (kind_ == kModule || targets.empty() ||
      !std::all_of(output.begin() + 1, output.end(), is_known)) {
    return absl::OkStatus();
  }
  for (const HostTensor& target : targets) {
    if (!std::ranges::all_of(target.shape, is_known)) {
      return absl::OkStatus();
    }
  }
  return CheckTargetForms(kind_, spec_, type_, output, targets, target_batch_dim_);
}

absl::StatusOr<at::Tensor> Loss::Compute(absl::Span<const at::Tensor> outputs,
                                         const TargetRows& rows) const {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<at::Tensor> predictions;
  for (const at::Tensor& output : outputs) {
    shapes.push_back(output.sizes().vec());
    predictions.push_back(output.to(ToScalarType(type_)));
  }
  BRAID_RETURN_IF_ERROR(CheckOutputs(shapes, rows.rows));
  if (kind_ == kModel) {
    return OfModel(predictions.front());
  }
  if (kind_ == kModule) {
    return ComputeModule(predictions.front(), rows);
  }
  BRAID_RETURN_IF_ERROR(CheckWeights(shapes.front()));
  if (rows.targets.empty()) {
    return Evaluate(predictions, {}, rows);
  }
  BRAID_RETURN_IF_ERROR(
      CheckTargetForms(kind_, spec_, type_, shapes.front(), rows.targets, target_batch_dim_));
  BRAID_RETURN_IF_ERROR(CheckTargetValues(kind_, spec_, shapes.front(), rows));
  const at::Tensor target = ViewRows(rows.target(), rows.start, rows.rows);
  return Evaluate(predictions, ToDevice(target, predictions.front(), rows.staging), rows);
}

absl::StatusOr<at::Tensor> Loss::ComputeModule(const at::Tensor& output,
                                               const TargetRows& rows) const {
  const at::Tensor target = ViewRows(rows.target(), rows.start, rows.rows);
  // Copies, because the module may keep or modify its arguments.
  return module_->Compute(output.clone(),
                          target.to(output.device(), target.scalar_type(), /*non_blocking=*/false,
                                    /*copy=*/true));
}

absl::Status Loss::CheckAddsUp(const at::Tensor& output, const HostTensor& target) const {
  if (kind_ != kModule || output.dim() < 1) {
    return absl::OkStatus();
  }
  const at::Tensor targets = View(target);
  return module_->IsProven(targets)
             ? absl::OkStatus()
             : module_->Prove(output.detach().to(ToScalarType(type_)), targets, spec_.reduction);
}

absl::Status Loss::CheckOutputs(const std::vector<std::vector<int64_t>>& outputs,
                                int64_t rows) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    BRAID_RETURN_IF_ERROR(CheckOutput(i, outputs[i], rows));
  }
  return CheckEqualShapes(outputs);
}

absl::Status Loss::CheckOutput(size_t i, const std::vector<int64_t>& output, int64_t rows) const {
  absl::string_view expected = ExpectedDims(kind_, output);
  if (expected.empty() && kind_ != kModel &&
      (output.empty() || (output[0] >= 0 && output[0] != rows))) {
    expected = "as many rows as the target";
  }
  if (expected.empty()) {
    return absl::OkStatus();
  }
  const std::string& name = spec_.outputs.empty() ? spec_.output : spec_.outputs[i];
  return InvalidField(OutputField(i),
                      absl::StrCat("output '", name, "' has shape ", ShapeString(output),
                                   " (expected ", expected, ")"));
}

absl::Status Loss::CheckEqualShapes(const std::vector<std::vector<int64_t>>& outputs) const {
  for (size_t i = 1; i < outputs.size(); ++i) {
    if (kind_ == kGaussianNll ? !IsVarianceOf(outputs[0], outputs[i])
                              : !MayEqual(outputs[0], outputs[i])) {
      return InvalidField(
          OutputField(i),
          absl::StrCat("output '", spec_.outputs[i], "' has shape ", ShapeString(outputs[i]),
                       " (expected ", ShapeString(outputs[0]), " of '", spec_.outputs[0], "'",
                       kind_ == kGaussianNll
                           ? "; the last dimension may be missing, or one size may be 1)"
                           : ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status Loss::CheckWeights(const std::vector<int64_t>& output) const {
  const auto weights = static_cast<int64_t>(spec_.class_weights.size());
  if (HasClassWeights(kind_) && weights > 0 && output[1] >= 0 && weights != output[1]) {
    return InvalidField(field_ + ".class_weights",
                        absl::StrCat("holds ", weights, "; output '", spec_.output, "' has ",
                                     output[1], " classes"));
  }
  BRAID_RETURN_IF_ERROR(CheckBlank(output));
  return CheckPosWeight(output);
}

absl::Status Loss::CheckBlank(const std::vector<int64_t>& output) const {
  if (kind_ != kCtc || output[2] < 0 || spec_.blank < output[2]) {
    return absl::OkStatus();
  }
  return InvalidField(field_ + ".blank",
                      absl::StrCat(spec_.blank, " is out of range (expected 0 to ", output[2] - 1,
                                   ": output '", spec_.output, "' has ", output[2], " classes)"));
}

absl::Status Loss::CheckPosWeight(const std::vector<int64_t>& output) const {
  const std::vector<int64_t> shape = PosWeightShape(spec_);
  if (spec_.pos_weight.size() <= 1 || BroadcastsToRows(shape, output)) {
    return absl::OkStatus();
  }
  return InvalidField(
      field_ + ".pos_weight",
      absl::StrCat("has shape ", ShapeString(shape), ", which does not broadcast to the rows of ",
                   "output '", spec_.output, "', ", ShapeString(output),
                   " (expected sizes of 1 or the output's, from the last dimension, and 1 for the "
                   "dimension of the rows)"));
}

int64_t Loss::AtReduction() const {
  return spec_.reduction == Reduction::kMean ? at::Reduction::Mean : at::Reduction::Sum;
}

at::Tensor Loss::Evaluate(const std::vector<at::Tensor>& outputs, const at::Tensor& target,
                          const TargetRows& rows) const {
  const int64_t reduction = AtReduction();
  const at::Tensor& output = outputs.front();
  switch (kind_) {
    case kCrossEntropy:
    case kNll:
    case kFocal:
      return OfClasses(output, target, rows.staging);
    case kMse:
      return at::mse_loss(output, target, reduction);
    case kL1:
      return at::l1_loss(output, target, reduction);
    case kSmoothL1:
      return at::smooth_l1_loss(output, target, reduction, *spec_.beta);
    case kHuber:
      return at::huber_loss(output, target, reduction, *spec_.delta);
    case kBceWithLogits:
      return at::binary_cross_entropy_with_logits(output, target, /*weight=*/{},
                                                  PosWeightFor(output, rows.staging), reduction);
    case kKlDiv:
      return spec_.reduction == Reduction::kBatchMean
                 ? at::kl_div(output, target, reduction, spec_.log_target).div(output.size(0))
                 : at::kl_div(output, target, reduction, spec_.log_target);
    case kPoissonNll:
      return at::poisson_nll_loss(output, target, *spec_.log_input, spec_.full, *spec_.eps,
                                  reduction);
    case kGaussianNll:
      return GaussianNllLoss(output, target, outputs[1], spec_.full, *spec_.eps, reduction);
    case kSigmoidFocal:
      return SigmoidFocalLoss(output, target, *spec_.alpha, *spec_.gamma, reduction);
    case kDice:
      return DiceLoss(output, target, *spec_.smooth, *spec_.ignore_index, reduction);
    case kCosineEmbedding:
    case kTripletMargin:
      return OfEmbeddings(outputs, target);
    case kCtc:
      return OfSequences(output, target, rows);
    case kModule:
    case kModel:
      break;
  }
  return OfModel(output);
}

at::Tensor Loss::OfClasses(const at::Tensor& output, const at::Tensor& target,
                           Staging* staging) const {
  const std::optional<at::Tensor> weights = WeightsFor(output, spec_.class_weights, staging);
  const int64_t ignored = *spec_.ignore_index;
  switch (kind_) {
    case kNll:
      return at::nll_loss_nd(output, target, weights, AtReduction(), ignored);
    case kFocal:
      return FocalLoss(output, target, weights, *spec_.gamma, ignored, AtReduction());
    default:
      return at::cross_entropy_loss(output, target, weights, AtReduction(), ignored,
                                    spec_.label_smoothing);
  }
}

at::Tensor Loss::OfEmbeddings(const std::vector<at::Tensor>& outputs,
                              const at::Tensor& target) const {
  return kind_ == kCosineEmbedding
             ? at::cosine_embedding_loss(outputs[0], outputs[1], target, *spec_.margin,
                                         AtReduction())
             : at::triplet_margin_loss(outputs[0], outputs[1], outputs[2], *spec_.margin, *spec_.p,
                                       *spec_.eps, spec_.swap, AtReduction());
}

at::Tensor Loss::OfSequences(const at::Tensor& output, const at::Tensor& target,
                             const TargetRows& rows) const {
  const auto lengths_of = [&rows](const HostTensor& lengths) {
    const ClassIndices values(rows, lengths);
    std::vector<int64_t> copy;
    for (int64_t i = 0; i < values.size(); ++i) {
      copy.push_back(values[i]);
    }
    return copy;
  };
  const std::vector<int64_t> steps =
      rows.targets.size() > 2
          ? lengths_of(rows.targets[2])
          : std::vector<int64_t>(static_cast<size_t>(rows.rows), output.size(1));
  return at::ctc_loss(output.transpose(0, 1), target, steps, lengths_of(rows.targets[1]),
                      spec_.blank, AtReduction(), spec_.zero_infinity);
}

std::optional<at::Tensor> Loss::PosWeightFor(const at::Tensor& output, Staging* staging) const {
  const std::optional<at::Tensor> weights = WeightsFor(output, spec_.pos_weight, staging);
  return weights ? weights->view(PosWeightShape(spec_)) : weights;
}

at::Tensor Loss::OfModel(const at::Tensor& output) const {
  return spec_.reduction == Reduction::kMean ? output.mean() : output.sum();
}

}  // namespace braid

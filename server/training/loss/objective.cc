#include "server/training/loss/objective.h"

#include <algorithm>
#include <set>

#include "ATen/ops/full_like.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/batch_layout.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

// PyTorch's default ignore_index.
constexpr int64_t kIgnored = -100;

absl::Status CheckCount(const TrainerSpec& spec) {
  if (spec.unweighted_mean && spec.loss_mode != LossMode::kModel) {
    return InvalidField("unweighted_mean", "requires a loss that the model computes");
  }
  if (spec.loss_mode == LossMode::kClient && !spec.losses.empty()) {
    return InvalidField("losses", absl::StrCat(spec.losses.size(),
                                               " losses, but the client computes the loss (leave "
                                               "it empty)"));
  }
  if (spec.losses.empty() &&
      (spec.loss_mode == LossMode::kCentral || spec.loss_mode == LossMode::kPerReplica)) {
    return InvalidField("losses", "missing (expected at least one)");
  }
  return absl::OkStatus();
}

// Rejects weights of 0 with label smoothing: a part whose targets all have weight 0 would divide by
// 0, although its smoothed classes count.
absl::Status CheckParts(const TrainerSpec& spec) {
  const bool in_parts = spec.loss_mode == LossMode::kPerReplica || spec.micro_batch > 0;
  for (size_t i = 0; in_parts && i < spec.losses.size(); ++i) {
    const LossSpec& loss = spec.losses[i];
    const auto zero = std::find(loss.class_weights.begin(), loss.class_weights.end(), 0.0);
    if (loss.label_smoothing > 0 && loss.reduction == Reduction::kMean &&
        zero != loss.class_weights.end()) {
      return InvalidField(
          absl::StrCat("losses[", i, "].class_weights"),
          absl::StrCat("gives class ", zero - loss.class_weights.begin(),
                       " the weight 0, which does not go with label_smoothing where a batch is "
                       "computed in parts (expected weights above 0)"));
    }
  }
  return absl::OkStatus();
}

// Returns the distinct names, quoted; "none" if there are none.
std::string Quoted(const std::vector<std::string>& names) {
  if (names.empty()) {
    return "none";
  }
  std::set<std::string> quoted;
  for (const std::string& name : names) {
    quoted.insert(absl::StrCat("'", name, "'"));
  }
  return absl::StrJoin(quoted, ", ");
}

// Returns the gradients of Σ factor · value with respect to the defined leaves.
std::vector<at::Tensor> Differentiate(const std::vector<at::Tensor>& values,
                                      const std::vector<double>& factors, double scale,
                                      const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> seeds;
  for (size_t i = 0; i < values.size(); ++i) {
    seeds.push_back(at::full_like(values[i], factors[i] * scale));
  }
  std::vector<at::Tensor> defined;
  std::copy_if(leaves.begin(), leaves.end(), std::back_inserter(defined),
               [](const at::Tensor& leaf) { return leaf.defined(); });
  std::vector<at::Tensor> gradients(leaves.size());
  if (values.empty()) {
    return gradients;
  }
  const std::vector<at::Tensor> found =
      torch::autograd::grad(values, defined, seeds, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  size_t next = 0;
  for (size_t o = 0; o < leaves.size(); ++o) {
    if (leaves[o].defined()) {
      gradients[o] = found[next++];
    }
  }
  return gradients;
}

}  // namespace

std::vector<int64_t> OutputShape(const ModelConfig& config, size_t index) {
  const TensorSpec& spec = config.outputs[index];
  std::vector<int64_t> shape = spec.dims;
  if (config.has_batch_dim(spec)) {
    shape.insert(shape.begin(), -1);
  } else if (!shape.empty()) {
    shape.front() = -1;
  }
  return shape;
}

absl::StatusOr<std::shared_ptr<const Objective>> Objective::Create(TrainerSpec* spec,
                                                                   const ModelConfig& config) {
  BRAID_RETURN_IF_ERROR(CheckCount(*spec));
  BRAID_RETURN_IF_ERROR(CheckParts(*spec));
  std::vector<LossSpec> specs = spec->losses;
  if (spec->loss_mode == LossMode::kModel && specs.empty()) {
    specs.emplace_back();
  }
  std::vector<Loss> losses;
  for (size_t i = 0; i < specs.size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(Loss loss, Loss::Create(std::move(specs[i]), spec->loss_mode,
                                                   absl::StrCat("losses[", i, "]"), config));
    specs[i] = loss.spec();
    losses.push_back(std::move(loss));
  }
  spec->losses = std::move(specs);
  return std::shared_ptr<const Objective>(
      new Objective(spec->loss_mode, std::move(losses), config));
}

Objective::Objective(LossMode mode, std::vector<Loss> losses, const ModelConfig& config)
    : mode_(mode), losses_(std::move(losses)), takes_output_(config.outputs.size(), false) {
  client_.target = "target";
  client_.ignore_index = kIgnored;
  if (mode_ == LossMode::kClient) {
    target_names_ = {client_.target};
    target_batch_dims_ = {config.outputs.front().batch_dim};
  }
  for (const Loss& loss : losses_) {
    for (const size_t o : loss.outputs()) {
      takes_output_[o] = true;
    }
    first_target_.push_back(target_names_.size());
    const std::vector<std::string> targets = loss.targets();
    target_names_.insert(target_names_.end(), targets.begin(), targets.end());
    target_batch_dims_.resize(target_names_.size(), loss.target_batch_dim());
  }
}

size_t Objective::TargetBatchDim(absl::string_view name) const {
  const auto found = std::find(target_names_.begin(), target_names_.end(), name);
  return found == target_names_.end()
             ? 0
             : target_batch_dims_[static_cast<size_t>(found - target_names_.begin())];
}

absl::Span<const HostTensor> Objective::TargetsOf(size_t i,
                                                  const std::vector<HostTensor>& targets) const {
  const size_t count = losses_[i].targets().size();
  return targets.empty() ? absl::Span<const HostTensor>()
                         : absl::MakeConstSpan(targets).subspan(first_target_[i], count);
}

bool Objective::has_module() const {
  return std::any_of(losses_.begin(), losses_.end(),
                     [](const Loss& loss) { return loss.kind() == LossKind::kModule; });
}

const LossSpec& Objective::measured() const {
  return mode_ == LossMode::kClient ? client_ : losses_.front().spec();
}

size_t Objective::measured_output() const {
  return mode_ == LossMode::kClient ? 0 : losses_.front().outputs().front();
}

absl::Status Objective::CheckOne(const std::vector<HostTensor>& targets, size_t i,
                                 int64_t rows) const {
  const HostTensor& target = targets[i];
  const std::string field = absl::StrCat("targets[", i, "]");
  const std::vector<std::string>& names = target_names_;
  if (std::find(names.begin(), names.end(), target.name) == names.end()) {
    return InvalidField(
        field + ".name",
        absl::StrCat("no ", mode_ == LossMode::kClient ? "metric" : "loss", " takes a target '",
                     Excerpt(target.name), "' (expected ", Quoted(names), ")"));
  }
  const auto same = [&](const HostTensor& other) { return other.name == target.name; };
  const auto end = targets.begin() + static_cast<std::ptrdiff_t>(i);
  if (std::any_of(targets.begin(), end, same)) {
    return InvalidField(field + ".name",
                        absl::StrCat("target '", target.name, "' is given twice (expected once)"));
  }
  if (target.shape.empty() || target.rows() != rows) {
    const size_t dim = TargetBatchDim(target.name);
    return InvalidField(
        field + ".shape",
        absl::StrCat(
            "target '", target.name, "' has shape ", ShapeString(ClientShape(target.shape, dim)),
            " (expected the inputs' ", rows, " rows",
            dim > 0 && dim < target.shape.size() ? absl::StrCat(" as dim ", dim) : "", ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<HostTensor>> Objective::PickTargets(
    const std::vector<HostTensor>& targets, int64_t rows) const {
  std::vector<HostTensor> picked;
  if (mode_ == LossMode::kModel) {
    return picked;
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    BRAID_RETURN_IF_ERROR(CheckOne(targets, i, rows));
  }
  for (const std::string& name : target_names_) {
    const auto found = std::find_if(targets.begin(), targets.end(),
                                    [&](const HostTensor& target) { return target.name == name; });
    if (found == targets.end()) {
      return InvalidField("targets", absl::StrCat("'", name, "' is missing (expected ",
                                                  Quoted(target_names_), ")"));
    }
    picked.push_back(*found);
    picked.back().name = absl::StrCat("targets[", found - targets.begin(), "]");
  }
  return picked;
}

absl::Status Objective::CheckTargets(const std::vector<HostTensor>& targets,
                                     const ModelConfig& config) const {
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> picked, PickTargets(targets, 1));
  for (size_t i = 0; i < losses_.size() && mode_ != LossMode::kModel; ++i) {
    std::vector<std::vector<int64_t>> outputs;
    for (const size_t o : losses_[i].outputs()) {
      outputs.push_back(OutputShape(config, o));
    }
    BRAID_RETURN_IF_ERROR(losses_[i].CheckTargets(outputs, TargetsOf(i, picked)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> Objective::Denominators(const std::vector<HostTensor>& targets,
                                                            int64_t start, int64_t rows) const {
  std::vector<double> denominators;
  for (size_t i = 0; i < losses_.size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(const double denominator,
                           losses_[i].Denominator({TargetsOf(i, targets), start, rows}));
    denominators.push_back(denominator);
  }
  return denominators;
}

std::vector<double> Objective::Shares(const std::vector<double>& part,
                                      const std::vector<double>& whole) const {
  std::vector<double> shares(losses_.size(), 1);
  for (size_t i = 0; i < shares.size(); ++i) {
    if (losses_[i].spec().reduction != Reduction::kSum && whole[i] != 0) {
      shares[i] = part[i] / whole[i];
    }
  }
  return shares;
}

absl::Status Objective::CheckAddsUp(const std::vector<at::Tensor>& outputs,
                                    const std::vector<HostTensor>& targets,
                                    bool with_gradient) const {
  const c10::AutoGradMode grad(with_gradient);
  for (size_t i = 0; i < losses_.size(); ++i) {
    if (losses_[i].kind() == LossKind::kModule) {
      BRAID_RETURN_IF_ERROR(losses_[i].CheckAddsUp(outputs[losses_[i].outputs().front()],
                                                   TargetsOf(i, targets).front()));
    }
  }
  return absl::OkStatus();
}

double ObjectiveValue::loss() const {
  double sum = 0;
  for (const LossTerm& term : terms) {
    sum += term.factor * term.value.item<double>();
  }
  return sum;
}

absl::StatusOr<ObjectiveValue> Objective::Compute(const std::vector<at::Tensor>& outputs,
                                                  const std::vector<HostTensor>& targets,
                                                  int64_t start, int64_t rows,
                                                  const std::vector<double>& shares,
                                                  GradientRequest gradient,
                                                  Staging* staging) const {
  const c10::AutoGradMode grad(gradient.wanted);
  std::vector<at::Tensor> leaves(outputs.size());
  std::vector<at::Tensor> values;
  std::vector<double> factors;
  for (size_t i = 0; i < losses_.size(); ++i) {
    if (shares[i] == 0) {
      continue;
    }
    for (const size_t o : losses_[i].outputs()) {
      if (!leaves[o].defined()) {
        leaves[o] = outputs[o].detach().requires_grad_(gradient.wanted);
      }
    }
    BRAID_ASSIGN_OR_RETURN(at::Tensor value,
                           losses_[i].Compute(losses_[i].Select(leaves),
                                              {TargetsOf(i, targets), start, rows, staging}));
    values.push_back(std::move(value));
    factors.push_back(losses_[i].spec().weight * shares[i]);
  }
  ObjectiveValue result;
  result.output_gradients.resize(outputs.size());
  if (gradient.wanted) {
    result.output_gradients = Differentiate(values, factors, gradient.scale, leaves);
    // If no target counts, the gradient is zero. It still updates the parameters that it reaches.
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (takes_output_[o] && !result.output_gradients[o].defined()) {
        result.output_gradients[o] = at::zeros_like(outputs[o]);
      }
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    result.terms.push_back({values[i].detach(), factors[i]});
  }
  return result;
}

}  // namespace braid

#include "server/training/loss/loss_spec.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

using enum LossKind;

constexpr std::array<std::pair<LossKind, absl::string_view>, 17> kNames = {{
    {kCrossEntropy, "cross_entropy"},
    {kNll, "nll"},
    {kMse, "mse"},
    {kL1, "l1"},
    {kSmoothL1, "smooth_l1"},
    {kHuber, "huber"},
    {kBceWithLogits, "bce_with_logits"},
    {kKlDiv, "kl_div"},
    {kPoissonNll, "poisson_nll"},
    {kGaussianNll, "gaussian_nll"},
    {kFocal, "focal"},
    {kSigmoidFocal, "sigmoid_focal"},
    {kDice, "dice"},
    {kCosineEmbedding, "cosine_embedding"},
    {kTripletMargin, "triplet_margin"},
    {kCtc, "ctc"},
    {kModule, "module"},
}};

absl::string_view NameOf(LossKind kind) { return kNames[static_cast<size_t>(kind)].second; }

absl::StatusOr<LossKind> KindOf(LossMode mode, const std::string& field, const LossSpec& spec) {
  if (mode == LossMode::kModel) {
    if (spec.name.empty()) {
      return kModel;
    }
    return InvalidField(field + ".name", absl::StrCat("is '", Excerpt(spec.name),
                                                      "' (leave it empty: the model computes the "
                                                      "loss)"));
  }
  for (const auto& [kind, name] : kNames) {
    if (spec.name == name) {
      return kind;
    }
  }
  return InvalidField(field + ".name",
                      absl::StrCat("there is no loss '", Excerpt(spec.name), "' (expected one of ",
                                   absl::StrJoin(kNames, ", ",
                                                 [](std::string* out, const auto& entry) {
                                                   absl::StrAppend(out, entry.second);
                                                 }),
                                   ")"));
}

// Returns "a", "a and b", or "a, b and c".
std::string Enumerate(const std::vector<std::string>& words) {
  const std::string last = words.size() > 1 ? absl::StrCat(" and ", words.back()) : "";
  return absl::StrCat(absl::StrJoin(words.begin(), words.end() - (words.size() > 1 ? 1 : 0), ", "),
                      last);
}

// Checks that a parameter is given only to a loss that has it.
absl::Status CheckOwners(LossKind kind, const std::string& field, const LossSpec& spec) {
  const struct {
    absl::string_view name;
    bool given;
    std::vector<LossKind> owners;
  } parameters[] = {
      {"outputs", !spec.outputs.empty(), {kGaussianNll, kCosineEmbedding, kTripletMargin}},
      {"target_lengths", !spec.target_lengths.empty(), {kCtc}},
      {"input_lengths", !spec.input_lengths.empty(), {kCtc}},
      {"ignore_index", spec.ignore_index.has_value(), {kCrossEntropy, kNll, kFocal, kDice}},
      {"label_smoothing", spec.label_smoothing != 0, {kCrossEntropy}},
      {"class_weights", !spec.class_weights.empty(), {kCrossEntropy, kNll, kFocal}},
      {"pos_weight", !spec.pos_weight.empty(), {kBceWithLogits}},
      {"pos_weight_shape", !spec.pos_weight_shape.empty(), {kBceWithLogits}},
      {"beta", spec.beta.has_value(), {kSmoothL1}},
      {"delta", spec.delta.has_value(), {kHuber}},
      {"log_target", spec.log_target, {kKlDiv}},
      {"margin", spec.margin.has_value(), {kCosineEmbedding, kTripletMargin}},
      {"p", spec.p.has_value(), {kTripletMargin}},
      {"swap", spec.swap, {kTripletMargin}},
      {"eps", spec.eps.has_value(), {kPoissonNll, kGaussianNll, kTripletMargin}},
      {"full", spec.full, {kPoissonNll, kGaussianNll}},
      {"log_input", spec.log_input.has_value(), {kPoissonNll}},
      {"gamma", spec.gamma.has_value(), {kFocal, kSigmoidFocal}},
      {"alpha", spec.alpha.has_value(), {kSigmoidFocal}},
      {"smooth", spec.smooth.has_value(), {kDice}},
      {"blank", spec.blank != 0, {kCtc}},
      {"zero_infinity", spec.zero_infinity, {kCtc}},
      {"module", !spec.module.empty(), {kModule}},
  };
  for (const auto& parameter : parameters) {
    bool owned = !parameter.given;
    std::vector<std::string> owners;
    for (const LossKind owner : parameter.owners) {
      owned = owned || owner == kind;
      owners.push_back(absl::StrCat(NameOf(owner), "'s"));
    }
    if (!owned) {
      return InvalidField(absl::StrCat(field, ".", parameter.name),
                          absl::StrCat("is ", Enumerate(owners), "; ",
                                       kind == kModel ? "a loss that the model computes"
                                                      : absl::StrCat("'", NameOf(kind), "'"),
                                       " has none"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPositive(const std::string& field, const std::optional<double>& value) {
  if (!value || (*value > 0 && std::isfinite(*value))) {
    return absl::OkStatus();
  }
  return InvalidField(field, absl::StrCat(*value, " is out of range (expected above 0)"));
}

absl::Status CheckNotNegative(const std::string& field, const std::optional<double>& value) {
  if (!value || (*value >= 0 && std::isfinite(*value))) {
    return absl::OkStatus();
  }
  return InvalidField(field, absl::StrCat(*value, " is out of range (expected at least 0)"));
}

absl::Status CheckWeights(const std::string& field, const std::vector<double>& weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0 && std::isfinite(weights[i]))) {
      return InvalidField(
          field, absl::StrCat(weights[i], " at ", i, " is out of range (expected at least 0)"));
    }
  }
  return absl::OkStatus();
}

// Checks that the weights fill their shape.
absl::Status CheckPosWeightShape(const std::string& field, const LossSpec& spec) {
  const std::vector<int64_t>& shape = spec.pos_weight_shape;
  const auto count = static_cast<int64_t>(spec.pos_weight.size());
  int64_t elements = 1;
  for (const int64_t dim : shape) {
    if (dim < 1 || dim > count / elements) {
      elements = 0;
      break;
    }
    elements *= dim;
  }
  if (shape.empty() || elements == count) {
    return absl::OkStatus();
  }
  return InvalidField(field + ".pos_weight_shape",
                      absl::StrCat(ShapeString(shape), " does not hold the ", count,
                                   " numbers of pos_weight (expected positive sizes with the "
                                   "product ",
                                   count, ")"));
}

// Checks the parameters of embeddings, densities, focal loss, Dice and CTC.
absl::Status CheckRangesOfKind(LossKind kind, const std::string& field, const LossSpec& spec) {
  if (kind == kTripletMargin) {
    BRAID_RETURN_IF_ERROR(CheckPositive(field + ".margin", spec.margin));
  } else if (spec.margin && !std::isfinite(*spec.margin)) {
    return InvalidField(field + ".margin",
                        absl::StrCat(*spec.margin, " is not finite (expected a finite number)"));
  }
  BRAID_RETURN_IF_ERROR(CheckPositive(field + ".p", spec.p));
  BRAID_RETURN_IF_ERROR(CheckPositive(field + ".eps", spec.eps));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(field + ".gamma", spec.gamma));
  BRAID_RETURN_IF_ERROR(CheckPositive(field + ".smooth", spec.smooth));
  if (spec.alpha && *spec.alpha != -1 && !(*spec.alpha >= 0 && *spec.alpha <= 1)) {
    return InvalidField(field + ".alpha",
                        absl::StrCat(*spec.alpha,
                                     " is out of range (expected 0 to 1, or -1 for "
                                     "no weighting)"));
  }
  if (spec.blank < 0) {
    return InvalidField(field + ".blank",
                        absl::StrCat(spec.blank, " is out of range (expected at least 0)"));
  }
  return absl::OkStatus();
}

// Checks the names of outputs and targets.
absl::Status CheckNames(LossKind kind, const std::string& field, const LossSpec& spec) {
  const std::vector<std::string> roles = OutputRoles(kind);
  if (!roles.empty() && !spec.output.empty()) {
    return InvalidField(field + ".output",
                        absl::StrCat("is '", Excerpt(spec.output), "', but ", spec.name,
                                     " takes several outputs (expected `outputs`: ",
                                     absl::StrJoin(roles, ", "), ")"));
  }
  if (!spec.outputs.empty() && spec.outputs.size() != roles.size()) {
    return InvalidField(field + ".outputs",
                        absl::StrCat("names ", spec.outputs.size(), " (expected ", roles.size(),
                                     ": ", absl::StrJoin(roles, ", "), ")"));
  }
  if (kind == kTripletMargin && !spec.target.empty()) {
    return InvalidField(field + ".target", absl::StrCat("is '", Excerpt(spec.target),
                                                        "' (leave it empty: triplet_margin takes "
                                                        "no target)"));
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const std::string& field, const LossSpec& spec) {
  if (!std::isfinite(spec.weight)) {
    return InvalidField(field + ".weight",
                        absl::StrCat(spec.weight, " is not finite (expected a finite number)"));
  }
  if (!(spec.label_smoothing >= 0 && spec.label_smoothing <= 1)) {
    return InvalidField(field + ".label_smoothing",
                        absl::StrCat(spec.label_smoothing, " is out of range (expected 0 to 1)"));
  }
  BRAID_RETURN_IF_ERROR(CheckWeights(field + ".class_weights", spec.class_weights));
  BRAID_RETURN_IF_ERROR(CheckWeights(field + ".pos_weight", spec.pos_weight));
  BRAID_RETURN_IF_ERROR(CheckPosWeightShape(field, spec));
  BRAID_RETURN_IF_ERROR(CheckPositive(field + ".beta", spec.beta));
  return CheckPositive(field + ".delta", spec.delta);
}

void FillIn(LossKind kind, LossSpec* spec) {
  if (spec->target.empty() && kind != kTripletMargin) {
    spec->target = "target";
  }
  switch (kind) {
    case kCrossEntropy:
    case kNll:
      spec->ignore_index = spec->ignore_index.value_or(-100);
      break;
    case kSmoothL1:
      spec->beta = spec->beta.value_or(1);
      break;
    case kHuber:
      spec->delta = spec->delta.value_or(1);
      break;
    case kPoissonNll:
      spec->log_input = spec->log_input.value_or(true);
      spec->eps = spec->eps.value_or(1e-8);
      break;
    case kGaussianNll:
      spec->eps = spec->eps.value_or(1e-6);
      break;
    case kFocal:
      spec->ignore_index = spec->ignore_index.value_or(-100);
      spec->gamma = spec->gamma.value_or(2);
      break;
    case kSigmoidFocal:
      spec->gamma = spec->gamma.value_or(2);
      spec->alpha = spec->alpha.value_or(0.25);
      break;
    case kDice:
      spec->ignore_index = spec->ignore_index.value_or(-100);
      spec->smooth = spec->smooth.value_or(1);
      break;
    case kCosineEmbedding:
      spec->margin = spec->margin.value_or(0);
      break;
    case kTripletMargin:
      spec->margin = spec->margin.value_or(1);
      spec->p = spec->p.value_or(2);
      spec->eps = spec->eps.value_or(1e-6);
      break;
    case kCtc:
      if (spec->target_lengths.empty()) {
        spec->target_lengths = "target_lengths";
      }
      break;
    case kMse:
    case kL1:
    case kBceWithLogits:
    case kKlDiv:
    case kModule:
    case kModel:
      break;
  }
  if (spec->pos_weight_shape.size() == 1) {
    spec->pos_weight_shape.clear();
  }
}

}  // namespace

std::vector<std::string> OutputRoles(LossKind kind) {
  switch (kind) {
    case kGaussianNll:
      return {"mean", "variance"};
    case kCosineEmbedding:
      return {"input1", "input2"};
    case kTripletMargin:
      return {"anchor", "positive", "negative"};
    default:
      return {};
  }
}

absl::StatusOr<LossKind> CheckLossSpec(LossMode mode, const std::string& field, LossSpec* spec) {
  BRAID_ASSIGN_OR_RETURN(const LossKind kind, KindOf(mode, field, *spec));
  BRAID_RETURN_IF_ERROR(CheckRanges(field, *spec));
  BRAID_RETURN_IF_ERROR(CheckOwners(kind, field, *spec));
  BRAID_RETURN_IF_ERROR(CheckNames(kind, field, *spec));
  BRAID_RETURN_IF_ERROR(CheckRangesOfKind(kind, field, *spec));
  if (spec->reduction == Reduction::kBatchMean && kind != kKlDiv) {
    return InvalidField(field + ".reduction", "batchmean is kl_div's (expected mean or sum)");
  }
  if (kind == kModel) {
    if (!spec->target.empty()) {
      return InvalidField(field + ".target",
                          absl::StrCat("is '", Excerpt(spec->target),
                                       "' (leave it empty: the model computes the loss)"));
    }
    return kind;
  }
  if (kind == kModule && spec->module.empty()) {
    return InvalidField(field + ".module", "is empty (expected a TorchScript file)");
  }
  FillIn(kind, spec);
  return kind;
}

}  // namespace braid

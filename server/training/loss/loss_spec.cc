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

constexpr std::array<std::pair<LossKind, absl::string_view>, 9> kNames = {{
    {kCrossEntropy, "cross_entropy"},
    {kNll, "nll"},
    {kMse, "mse"},
    {kL1, "l1"},
    {kSmoothL1, "smooth_l1"},
    {kHuber, "huber"},
    {kBceWithLogits, "bce_with_logits"},
    {kKlDiv, "kl_div"},
    {kModule, "module"},
}};

absl::string_view NameOf(LossKind kind) { return kNames[static_cast<size_t>(kind)].second; }

absl::StatusOr<LossKind> KindOf(LossMode mode, const std::string& field, const LossSpec& spec) {
  if (mode == LossMode::kModel) {
    if (spec.name.empty()) {
      return kModel;
    }
    return InvalidField(field + ".name", absl::StrCat("is '", Excerpt(spec.name),
                                                      "'; expected none where the model computes "
                                                      "the loss"));
  }
  for (const auto& [kind, name] : kNames) {
    if (spec.name == name) {
      return kind;
    }
  }
  return InvalidField(
      field + ".name",
      absl::StrCat("there is no loss '", Excerpt(spec.name), "'; expected one of ",
                   absl::StrJoin(kNames, ", ", [](std::string* out, const auto& entry) {
                     absl::StrAppend(out, entry.second);
                   })));
}

// Checks that a parameter is given only to a loss that has it.
absl::Status CheckOwners(LossKind kind, const std::string& field, const LossSpec& spec) {
  const struct {
    absl::string_view name;
    bool given;
    std::vector<LossKind> owners;
  } parameters[] = {
      {"ignore_index", spec.ignore_index.has_value(), {kCrossEntropy, kNll}},
      {"label_smoothing", spec.label_smoothing != 0, {kCrossEntropy}},
      {"class_weights", !spec.class_weights.empty(), {kCrossEntropy, kNll}},
      {"pos_weight", !spec.pos_weight.empty(), {kBceWithLogits}},
      {"pos_weight_shape", !spec.pos_weight_shape.empty(), {kBceWithLogits}},
      {"beta", spec.beta.has_value(), {kSmoothL1}},
      {"delta", spec.delta.has_value(), {kHuber}},
      {"log_target", spec.log_target, {kKlDiv}},
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
                          absl::StrCat("is ", absl::StrJoin(owners, " and "), "; ",
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
  return InvalidField(field, absl::StrCat(*value, " is out of range; expected above 0"));
}

absl::Status CheckWeights(const std::string& field, const std::vector<double>& weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0 && std::isfinite(weights[i]))) {
      return InvalidField(
          field, absl::StrCat(weights[i], " at ", i, " is out of range; expected at least 0"));
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

absl::Status CheckRanges(const std::string& field, const LossSpec& spec) {
  if (!std::isfinite(spec.weight)) {
    return InvalidField(field + ".weight",
                        absl::StrCat(spec.weight, " is not finite; expected a number"));
  }
  if (!(spec.label_smoothing >= 0 && spec.label_smoothing <= 1)) {
    return InvalidField(field + ".label_smoothing",
                        absl::StrCat(spec.label_smoothing, " is out of range; expected 0 to 1"));
  }
  BRAID_RETURN_IF_ERROR(CheckWeights(field + ".class_weights", spec.class_weights));
  BRAID_RETURN_IF_ERROR(CheckWeights(field + ".pos_weight", spec.pos_weight));
  BRAID_RETURN_IF_ERROR(CheckPosWeightShape(field, spec));
  BRAID_RETURN_IF_ERROR(CheckPositive(field + ".beta", spec.beta));
  return CheckPositive(field + ".delta", spec.delta);
}

void FillIn(LossKind kind, LossSpec* spec) {
  if (spec->target.empty()) {
    spec->target = "target";
  }
  if (kind == kCrossEntropy || kind == kNll) {
    spec->ignore_index = spec->ignore_index.value_or(-100);
  } else if (kind == kSmoothL1) {
    spec->beta = spec->beta.value_or(1);
  } else if (kind == kHuber) {
    spec->delta = spec->delta.value_or(1);
  }
  if (spec->pos_weight_shape.size() == 1) {
    spec->pos_weight_shape.clear();
  }
}

}  // namespace

absl::StatusOr<LossKind> CheckLossSpec(LossMode mode, const std::string& field, LossSpec* spec) {
  BRAID_ASSIGN_OR_RETURN(const LossKind kind, KindOf(mode, field, *spec));
  BRAID_RETURN_IF_ERROR(CheckRanges(field, *spec));
  BRAID_RETURN_IF_ERROR(CheckOwners(kind, field, *spec));
  if (spec->reduction == Reduction::kBatchMean && kind != kKlDiv) {
    return InvalidField(field + ".reduction",
                        "batchmean is kl_div's (expected mean or sum)");
  }
  if (kind == kModel) {
    if (!spec->target.empty()) {
      return InvalidField(field + ".target",
                          absl::StrCat("is '", Excerpt(spec->target),
                                       "'; expected none where the model computes the loss"));
    }
    return kind;
  }
  if (kind == kModule && spec->module.empty()) {
    return InvalidField(field + ".module", "is empty; expected a TorchScript file");
  }
  FillIn(kind, spec);
  return kind;
}

}  // namespace braid

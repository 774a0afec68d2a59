#include "server/training/loss/loss_target.h"

#include <string>
#include <vector>

#include "ATen/ops/isnan.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

bool TakesClasses(LossKind kind) {
  return kind == LossKind::kCrossEntropy || kind == LossKind::kNll;
}

// "INT64 [20, 10]".
std::string Form(DataType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(DataTypeName(type), " ", ShapeString(shape));
}

// Class probabilities cannot be combined with ignore_index.
absl::Status CheckProbabilities(LossKind kind, const LossSpec& spec, const HostTensor& target) {
  if (kind != LossKind::kCrossEntropy || *spec.ignore_index < 0) {
    return absl::OkStatus();
  }
  return InvalidField(
      absl::StrCat(target.name, ".datatype"),
      absl::StrCat("target '", spec.target, "' is ", DataTypeName(target.type),
                   " (class probabilities), which a loss with ignore_index ", *spec.ignore_index,
                   " cannot take (expected INT64, class indices)"));
}

}  // namespace

ClassIndices::ClassIndices(const TargetRows& rows)
    : start_(rows.start),
      row_size_(static_cast<int64_t>(rows.target->bytes / sizeof(int64_t)) / rows.target->rows()),
      size_(rows.rows * row_size_),
      data_(static_cast<const char*>(rows.target->data) +
            start_ * row_size_ * static_cast<int64_t>(sizeof(int64_t))) {}

bool HoldsClasses(LossKind kind, const HostTensor& target) {
  return TakesClasses(kind) && target.type == DataType::kInt64;
}

absl::Status CheckTargetForm(LossKind kind, const LossSpec& spec, DataType type,
                             const std::vector<int64_t>& output, const HostTensor& target) {
  if (output.empty() || (TakesClasses(kind) && output.size() < 2)) {
    return InvalidField(
        target.name,
        absl::StrCat("output '", spec.output, "' has shape ", ShapeString(output), ", which ",
                     spec.name, " does not take (expected ",
                     TakesClasses(kind) ? "[rows, classes, ...]" : "[rows, ...]", ")"));
  }
  // The output may have a part of the target's rows.
  std::vector<int64_t> whole = output;
  whole.front() = target.rows();
  std::vector<int64_t> classes = whole;
  if (TakesClasses(kind)) {
    classes.erase(classes.begin() + 1);
  }
  const bool takes_whole = kind != LossKind::kNll;
  if (takes_whole && target.type == type && target.shape == whole) {
    return CheckProbabilities(kind, spec, target);
  }
  if (HoldsClasses(kind, target) && target.shape == classes) {
    return absl::OkStatus();
  }
  std::string right = takes_whole ? Form(type, whole) : "";
  if (TakesClasses(kind)) {
    right =
        absl::StrCat(Form(DataType::kInt64, classes), ", class indices", takes_whole ? ", or " : "",
                     right, takes_whole ? ", class probabilities" : "");
  }
  const bool type_fits = (takes_whole && target.type == type) || HoldsClasses(kind, target);
  return InvalidField(
      absl::StrCat(target.name, type_fits ? ".shape" : ".datatype"),
      absl::StrCat("target '", spec.target, "' is ", Form(target.type, target.shape),
                   ", which does not fit ", spec.name, " of output '", spec.output, "' (expected ",
                   right, ")"));
}

absl::Status CheckClasses(const LossSpec& spec, int64_t classes, const TargetRows& rows) {
  const ClassIndices indices(rows);
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = indices[i];
    if ((index < 0 || index >= classes) && index != spec.ignore_index) {
      return InvalidField(rows.target->name,
                          absl::StrCat("class index ", index, " in row ", indices.row(i),
                                       " is out of range; output '", spec.output, "' has ", classes,
                                       " classes: expected 0 to ", classes - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const at::Tensor& values, bool probabilities, const TargetRows& rows) {
  const at::Tensor wrong =
      probabilities ? values.ge(0).logical_and(values.le(1)).logical_not() : at::isnan(values);
  if (!wrong.any().item<bool>()) {
    return absl::OkStatus();
  }
  const int64_t first = wrong.flatten().nonzero()[0].item<int64_t>();
  const int64_t row = rows.start + first / (values.numel() / values.size(0));
  const double value = values.flatten()[first].item<double>();
  if (value != value) {
    return InvalidField(rows.target->name,
                        absl::StrCat("holds NaN in row ", row, "; expected numbers"));
  }
  return InvalidField(rows.target->name,
                      absl::StrCat(value, " in row ", row, " is out of range; expected 0 to 1"));
}

}  // namespace braid

#include "server/training/loss/loss_target.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ATen/ops/isnan.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/models/batch_layout.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

// Datatype and shape that a loss takes; -1: any size.
struct TargetForm {
  DataType type = DataType::kInt64;
  std::vector<int64_t> shape;
  absl::string_view meaning;  // empty: the output's
};

bool NeedsClassDim(LossKind kind) {
  return kind == LossKind::kCrossEntropy || kind == LossKind::kNll || kind == LossKind::kFocal ||
         kind == LossKind::kDice;
}

// "INT64 [20, 10]".
std::string Form(DataType type, const std::vector<int64_t>& shape, size_t batch_dim) {
  return absl::StrCat(DataTypeName(type), " ", ShapeString(ClientShape(shape, batch_dim)));
}

// Returns the forms that a loss takes for an output of shape `output` and datatype `type`.
std::vector<TargetForm> FormsOf(LossKind kind, DataType type, const std::vector<int64_t>& output) {
  if (kind == LossKind::kCtc) {
    return {{DataType::kInt64, {output.front(), -1}, "class indices"}};
  }
  if (kind == LossKind::kCosineEmbedding) {
    return {{DataType::kInt64, {output.front()}, "1 or -1"}, {type, {output.front()}, "1 or -1"}};
  }
  if (!NeedsClassDim(kind)) {
    return {{type, output, ""}};
  }
  std::vector<int64_t> classes = output;
  classes.erase(classes.begin() + 1);
  std::vector<TargetForm> forms = {{DataType::kInt64, classes, "class indices"}};
  if (kind == LossKind::kCrossEntropy) {
    forms.push_back({type, output, "class probabilities"});
  } else if (kind == LossKind::kDice) {
    forms.push_back({type, output, "masks"});
  }
  return forms;
}

bool Matches(const TargetForm& form, const HostTensor& target) {
  const auto fits = [](int64_t wanted, int64_t dim) { return wanted < 0 || wanted == dim; };
  return target.type == form.type && std::ranges::equal(form.shape, target.shape, fits);
}

// Checks that `target`, the model's `name`, has one of the forms.
absl::Status CheckForms(const LossSpec& spec, const std::string& name, const std::string& output,
                        const std::vector<TargetForm>& forms, const HostTensor& target,
                        size_t batch_dim) {
  bool type_fits = false;
  for (const TargetForm& form : forms) {
    if (Matches(form, target)) {
      return absl::OkStatus();
    }
    type_fits = type_fits || form.type == target.type;
  }
  const std::string expected =
      absl::StrJoin(forms, ", or ", [&](std::string* out, const TargetForm& form) {
        absl::StrAppend(out, Form(form.type, form.shape, batch_dim),
                        form.meaning.empty() ? "" : ", ", form.meaning);
      });
  return InvalidField(
      absl::StrCat(target.name, type_fits ? ".shape" : ".datatype"),
      absl::StrCat("target '", name, "' is ", Form(target.type, target.shape, batch_dim),
                   ", which does not fit ", spec.name, " of output '", output, "' (expected ",
                   expected, ")"));
}

// Class probabilities and masks cannot be combined with ignore_index.
absl::Status CheckProbabilities(LossKind kind, const LossSpec& spec, const HostTensor& target) {
  if (!NeedsClassDim(kind) || HoldsClasses(kind, target) || *spec.ignore_index < 0) {
    return absl::OkStatus();
  }
  return InvalidField(absl::StrCat(target.name, ".datatype"),
                      absl::StrCat("target '", spec.target, "' is ", DataTypeName(target.type),
                                   " (", kind == LossKind::kDice ? "masks" : "class probabilities",
                                   "), which a loss with ignore_index ", *spec.ignore_index,
                                   " cannot take (expected INT64, class indices)"));
}

std::string NameOfOutput(const LossSpec& spec) {
  return spec.outputs.empty() ? spec.output : spec.outputs.front();
}

// Returns, for each element of a target's rows, whether the loss does not take the number, and says
// which it takes.
at::Tensor WrongNumbers(LossKind kind, const at::Tensor& values, absl::string_view* expected) {
  switch (kind) {
    case LossKind::kBceWithLogits:
    case LossKind::kSigmoidFocal:
    case LossKind::kDice:
      *expected = "0 to 1";
      return values.ge(0).logical_and(values.le(1)).logical_not();
    case LossKind::kPoissonNll:
      *expected = "at least 0";
      return values.ge(0).logical_not();
    case LossKind::kCosineEmbedding:
      *expected = "1 or -1";
      return values.abs().ne(1);
    default:
      return at::isnan(values);
  }
}

absl::Status CheckNumbers(LossKind kind, const TargetRows& rows) {
  const at::Tensor values = ViewRows(rows.target(), rows.start, rows.rows);
  absl::string_view expected;
  const at::Tensor wrong = WrongNumbers(kind, values, &expected);
  if (!wrong.any().item<bool>()) {
    return absl::OkStatus();
  }
  const int64_t first = wrong.flatten().nonzero()[0].item<int64_t>();
  const int64_t row = rows.start + first / (values.numel() / values.size(0));
  const double value = values.flatten()[first].item<double>();
  if (value != value) {
    return InvalidField(rows.target().name,
                        absl::StrCat("holds NaN in row ", row, " (expected numbers)"));
  }
  return InvalidField(
      rows.target().name,
      absl::StrCat(value, " in row ", row, " is out of range (expected ", expected, ")"));
}

// Checks lengths of CTC, from `least` to `most`.
absl::Status CheckLengths(const TargetRows& rows, const HostTensor& lengths, int64_t least,
                          int64_t most, absl::string_view of) {
  const ClassIndices values(rows, lengths);
  for (int64_t i = 0; i < values.size(); ++i) {
    if (values[i] < least || values[i] > most) {
      return InvalidField(lengths.name, absl::StrCat("length ", values[i], " in row ",
                                                     values.row(i), " is out of range (expected ",
                                                     least, " to ", most, ", the ", of, ")"));
    }
  }
  return absl::OkStatus();
}

// Checks the targets of CTC. Elements beyond a row's length do not count.
absl::Status CheckSequences(const LossSpec& spec, const std::vector<int64_t>& output,
                            const TargetRows& rows) {
  const int64_t size = rows.target().shape[1];
  BRAID_RETURN_IF_ERROR(
      CheckLengths(rows, rows.targets[1], 0, size, absl::StrCat("size of '", spec.target, "'")));
  if (rows.targets.size() > 2) {
    BRAID_RETURN_IF_ERROR(CheckLengths(rows, rows.targets[2], 1, output[1],
                                       absl::StrCat("time steps of '", spec.output, "'")));
  }
  const ClassIndices lengths(rows, rows.targets[1]);
  const ClassIndices indices(rows);
  const int64_t classes = output[2];
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = indices[i];
    if (i % size < lengths[i / size] && (index < 0 || index >= classes || index == spec.blank)) {
      return InvalidField(
          rows.target().name,
          absl::StrCat("class index ", index, " in row ", indices.row(i),
                       index == spec.blank ? " is the blank" : " is out of range",
                       " (expected 0 to ", classes - 1, ", except the blank ", spec.blank,
                       ": output '", spec.output, "' has ", classes, " classes)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ClassIndices::ClassIndices(const TargetRows& rows, const HostTensor& target)
    : start_(rows.start),
      row_size_(static_cast<int64_t>(target.bytes / sizeof(int64_t)) / target.rows()),
      size_(rows.rows * row_size_),
      data_(static_cast<const char*>(target.data) +
            start_ * row_size_ * static_cast<int64_t>(sizeof(int64_t))) {}

std::vector<std::string> TargetNames(LossKind kind, const LossSpec& spec) {
  if (kind == LossKind::kModel || kind == LossKind::kTripletMargin) {
    return {};
  }
  if (kind != LossKind::kCtc) {
    return {spec.target};
  }
  std::vector<std::string> names = {spec.target, spec.target_lengths};
  if (!spec.input_lengths.empty()) {
    names.push_back(spec.input_lengths);
  }
  return names;
}

bool HoldsClasses(LossKind kind, const HostTensor& target) {
  return NeedsClassDim(kind) && target.type == DataType::kInt64;
}

absl::Status CheckTargetForms(LossKind kind, const LossSpec& spec, DataType type,
                              const std::vector<int64_t>& output,
                              absl::Span<const HostTensor> targets, size_t batch_dim) {
  if (output.empty() || (NeedsClassDim(kind) && output.size() < 2)) {
    return InvalidField(
        targets.front().name,
        absl::StrCat("output '", NameOfOutput(spec), "' has shape ", ShapeString(output),
                     ", which ", spec.name, " does not take (expected ",
                     NeedsClassDim(kind) ? "[rows, classes, ...]" : "[rows, ...]", ")"));
  }
  // The output may have a part of the targets' rows.
  std::vector<int64_t> whole = output;
  whole.front() = targets.front().rows();
  BRAID_RETURN_IF_ERROR(CheckForms(spec, spec.target, NameOfOutput(spec),
                                   FormsOf(kind, type, whole), targets.front(), batch_dim));
  const std::vector<std::string> names = TargetNames(kind, spec);
  for (size_t t = 1; t < targets.size(); ++t) {
    BRAID_RETURN_IF_ERROR(CheckForms(spec, names[t], NameOfOutput(spec),
                                     {{DataType::kInt64, {whole.front()}, "lengths"}}, targets[t],
                                     batch_dim));
  }
  return CheckProbabilities(kind, spec, targets.front());
}

absl::Status CheckTargetValues(LossKind kind, const LossSpec& spec,
                               const std::vector<int64_t>& output, const TargetRows& rows) {
  if (kind == LossKind::kCtc) {
    return CheckSequences(spec, output, rows);
  }
  return HoldsClasses(kind, rows.target()) ? CheckClasses(spec, output[1], rows)
                                           : CheckNumbers(kind, rows);
}

absl::Status CheckClasses(const LossSpec& spec, int64_t classes, const TargetRows& rows) {
  const ClassIndices indices(rows);
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = indices[i];
    if ((index < 0 || index >= classes) && index != spec.ignore_index) {
      return InvalidField(rows.target().name,
                          absl::StrCat("class index ", index, " in row ", indices.row(i),
                                       " is out of range (expected 0 to ", classes - 1,
                                       ": output '", spec.output, "' has ", classes, " classes)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid

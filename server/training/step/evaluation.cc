#include "server/training/step/evaluation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

constexpr std::array<const char*, 8> kNames = {
    "accuracy", "top_k", "confusion", "mse", "mae", "binary_accuracy", "iou", "label_error_rate"};

// Limit of the confusion table, which is sent in one reply.
constexpr int64_t kMaxConfusedClasses = 2048;

std::string FieldOf(size_t i) { return absl::StrCat("metrics[", i, "]"); }

// Returns the classes of a row of CTC by greedy decoding: the likeliest class of each time step,
// without repetitions and blanks. `best`: INT64 [time steps].
std::vector<int64_t> DecodeGreedily(const int64_t* best, int64_t steps, int64_t blank) {
  std::vector<int64_t> classes;
  for (int64_t t = 0; t < steps; ++t) {
    if (best[t] != blank && (t == 0 || best[t] != best[t - 1])) {
      classes.push_back(best[t]);
    }
  }
  return classes;
}

// Returns the least number of insertions, deletions and substitutions from `a` to `b`.
int64_t EditDistance(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = std::exchange(row[0], static_cast<int64_t>(i) + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

absl::StatusOr<Evaluation> Evaluation::Create(const std::vector<std::string>& metrics, int64_t k,
                                              std::shared_ptr<const Objective> objective) {
  const bool of_client = objective->losses().empty();
  if (of_client && metrics.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("metrics: missing (expected at least one of ", absl::StrJoin(kNames, ", "),
                     ", because the client computes this trainer's loss)"));
  }
  const bool measurable = of_client || !objective->losses().front().targets().empty();
  std::vector<Metric> kinds;
  for (size_t i = 0; i < metrics.size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(const Metric metric, MetricOf(metrics, i));
    kinds.push_back(metric);
    if (!measurable) {
      return absl::FailedPreconditionError(
          absl::StrCat(FieldOf(i), ": ", NameOf(metric), " needs a target, but ",
                       objective->needs_targets() ? "the first loss has none" : "no loss has one"));
    }
    if (metric == Metric::kLabelErrorRate &&
        (of_client || objective->losses().front().kind() != LossKind::kCtc)) {
      return absl::FailedPreconditionError(absl::StrCat(
          FieldOf(i), ": label_error_rate is measured by the targets of ctc (expected ctc as the ",
          "first loss)"));
    }
    if (metric == Metric::kTopK && k < 1) {
      return InvalidField("k", absl::StrCat(k, " is out of range (expected at least 1)"));
    }
  }
  return Evaluation(std::move(kinds), k, std::move(objective));
}

absl::StatusOr<Evaluation::Metric> Evaluation::MetricOf(const std::vector<std::string>& names,
                                                        size_t i) {
  const auto found = std::find(kNames.begin(), kNames.end(), names[i]);
  if (found == kNames.end()) {
    return InvalidField(
        FieldOf(i), absl::StrCat("there is no metric '", Excerpt(names[i]), "' (expected one of ",
                                 absl::StrJoin(kNames, ", "), ")"));
  }
  const auto self = names.begin() + static_cast<std::ptrdiff_t>(i);
  if (std::find(names.begin(), self, names[i]) != self) {
    return InvalidField(FieldOf(i),
                        absl::StrCat("'", names[i], "' is given twice (expected once)"));
  }
  return static_cast<Metric>(found - kNames.begin());
}

const char* Evaluation::NameOf(Metric metric) { return kNames[static_cast<size_t>(metric)]; }

bool Evaluation::Measures(Metric metric) const {
  return std::find(metrics_.begin(), metrics_.end(), metric) != metrics_.end();
}

bool Evaluation::TakesClasses(Metric metric, const HostTensor& target) {
  return metric == Metric::kAccuracy || metric == Metric::kTopK || metric == Metric::kConfusion ||
         (metric == Metric::kIou && target.type == DataType::kInt64);
}

absl::Status Evaluation::Add(const std::vector<at::Tensor>& outputs,
                             const std::vector<HostTensor>& targets, int64_t start, int64_t rows) {
  const c10::AutoGradMode no_grad(false);
  BRAID_RETURN_IF_ERROR(AddLosses(outputs, targets, start, rows));
  rows_ += rows;
  if (metrics_.empty()) {
    return absl::OkStatus();
  }
  const at::Tensor& output = outputs[objective_->measured_output()];
  const TargetRows measured{targets, start, rows};
  bool classes = false;
  const std::vector<int64_t> shape = output.sizes().vec();
  for (size_t i = 0; i < metrics_.size(); ++i) {
    BRAID_RETURN_IF_ERROR(CheckRows(i, shape, rows));
    BRAID_RETURN_IF_ERROR(CheckForm(i, shape, targets.front()));
    if (metrics_[i] == Metric::kConfusion) {
      BRAID_RETURN_IF_ERROR(GrowConfusion(i, output.size(1)));
    } else if (metrics_[i] == Metric::kIou) {
      BRAID_RETURN_IF_ERROR(GrowOverlaps(i, output.size(1)));
    }
    classes = classes || TakesClasses(metrics_[i], targets.front());
  }
  if (classes) {
    BRAID_RETURN_IF_ERROR(CheckClasses(objective_->measured(), output.size(1), measured));
    AddClasses(output, measured);
  }
  if (Measures(Metric::kMse) || Measures(Metric::kMae)) {
    AddErrors(output, measured);
  }
  if (Measures(Metric::kBinaryAccuracy) || (Measures(Metric::kIou) && !classes)) {
    AddMasks(output, measured);
  }
  if (Measures(Metric::kLabelErrorRate)) {
    AddSequences(output, measured);
  }
  return absl::OkStatus();
}

absl::Status Evaluation::AddLosses(const std::vector<at::Tensor>& outputs,
                                   const std::vector<HostTensor>& targets, int64_t start,
                                   int64_t rows) {
  for (size_t i = 0; i < losses_.size(); ++i) {
    const Loss& loss = objective_->losses()[i];
    const TargetRows measured{objective_->TargetsOf(i, targets), start, rows};
    BRAID_ASSIGN_OR_RETURN(const double denominator, loss.Denominator(measured));
    BRAID_ASSIGN_OR_RETURN(const at::Tensor value, loss.Compute(loss.Select(outputs), measured));
    if (denominator != 0) {  // else the value is the mean of nothing
      losses_[i].sum += value.item<double>() * denominator;
      losses_[i].count += denominator;
    }
  }
  return absl::OkStatus();
}

absl::Status Evaluation::AddChunk(const std::vector<at::Tensor>& outputs, int64_t rows,
                                  double weight) {
  const c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < losses_.size(); ++i) {
    const Loss& loss = objective_->losses()[i];
    BRAID_ASSIGN_OR_RETURN(const at::Tensor value, loss.Compute(loss.Select(outputs), {}));
    const double share = loss.spec().reduction == Reduction::kMean ? weight : 1;
    losses_[i].sum += value.item<double>() * share;
    losses_[i].count += share;
  }
  rows_ += rows;
  return absl::OkStatus();
}

absl::Status Evaluation::CheckTargets(const std::vector<HostTensor>& targets,
                                      const ModelConfig& config) const {
  if (metrics_.empty()) {
    return absl::OkStatus();
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> picked, objective_->PickTargets(targets, 1));
  const std::vector<int64_t> output = OutputShape(config, objective_->measured_output());
  for (size_t i = 0; i < metrics_.size(); ++i) {
    BRAID_RETURN_IF_ERROR(CheckRows(i, output, 1));
    BRAID_RETURN_IF_ERROR(CheckForm(i, output, picked.front()));
  }
  return absl::OkStatus();
}

absl::Status Evaluation::CheckRows(size_t i, const std::vector<int64_t>& output,
                                   int64_t rows) const {
  if (output.empty() || (output.front() >= 0 && output.front() != rows)) {
    return absl::FailedPreconditionError(absl::StrCat(
        FieldOf(i), ": ", NameOf(metrics_[i]), " needs an output with a row for each of the ",
        "inputs' ", rows, ", but ", OutputName(), " has shape ", ShapeString(output)));
  }
  return absl::OkStatus();
}

absl::Status Evaluation::CheckForm(size_t i, const std::vector<int64_t>& output,
                                   const HostTensor& target) const {
  if (metrics_[i] == Metric::kLabelErrorRate) {
    return absl::OkStatus();  // the loss has checked its targets
  }
  std::vector<int64_t> shape = output;
  shape.front() = output.front() < 0 ? -1 : target.rows();
  const bool classes = TakesClasses(metrics_[i], target);
  if ((classes || metrics_[i] == Metric::kIou) && output.size() < 2) {
    return InvalidField(FieldOf(i), absl::StrCat(NameOf(metrics_[i]),
                                                 " needs an output of shape [rows, classes], but ",
                                                 OutputName(), " has shape ", ShapeString(shape)));
  }
  bool fits = IsFloatingPoint(target.type);
  absl::string_view expected = metrics_[i] == Metric::kIou ? "masks" : "numbers";
  if (classes) {
    shape.erase(shape.begin() + 1);
    fits = target.type == DataType::kInt64;
    expected = "class indices, INT64";
  }
  const auto may_equal = [](int64_t a, int64_t b) { return a == b || a < 0 || b < 0; };
  if (fits && std::ranges::equal(target.shape, shape, may_equal)) {
    return absl::OkStatus();
  }
  return InvalidField(
      FieldOf(i), absl::StrCat(NameOf(metrics_[i]), " is measured by ", expected, " ",
                               ShapeString(shape), "; target '", objective_->measured().target,
                               "' is ", DataTypeName(target.type), " ", ShapeString(target.shape)));
}

std::string Evaluation::OutputName() const {
  if (objective_->losses().empty()) {
    return "the first output";
  }
  return absl::StrCat("'", objective_->losses().front().output_name(), "'");
}

absl::Status Evaluation::CheckClassCount(size_t i, int64_t counted, int64_t classes) const {
  if (counted == 0 || counted == classes) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      FieldOf(i), ": ", NameOf(metrics_[i]), ": the batch has ", classes,
      " classes, earlier batches had ", counted, " (all batches must have the same number)"));
}

absl::Status Evaluation::GrowConfusion(size_t i, int64_t classes) {
  BRAID_RETURN_IF_ERROR(CheckClassCount(i, classes_, classes));
  if (classes > kMaxConfusedClasses) {
    return absl::FailedPreconditionError(absl::StrCat(FieldOf(i), ": confusion: the batch has ",
                                                      classes, " classes (expected at most ",
                                                      kMaxConfusedClasses, ")"));
  }
  classes_ = classes;
  confusion_.resize(static_cast<size_t>(classes * classes));
  return absl::OkStatus();
}

absl::Status Evaluation::GrowOverlaps(size_t i, int64_t classes) {
  BRAID_RETURN_IF_ERROR(CheckClassCount(i, static_cast<int64_t>(overlaps_.size()), classes));
  overlaps_.resize(static_cast<size_t>(classes));
  return absl::OkStatus();
}

void Evaluation::AddClasses(const at::Tensor& output, const TargetRows& rows) {
  // [element, class]: one row per class index.
  const at::Tensor scores = output.movedim(1, -1).reshape({-1, output.size(1)});
  const int64_t k = std::min(k_, scores.size(1));
  const at::Tensor best = scores.argmax(1).cpu();
  at::Tensor top = best.unsqueeze(1);
  if (Measures(Metric::kTopK)) {
    top = std::get<1>(scores.topk(k, 1)).cpu().contiguous();
  }
  const ClassIndices indices(rows);
  const int64_t* predicted = best.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = indices[i];
    if (index == objective_->measured().ignore_index) {
      continue;
    }
    const int64_t* begin = top.const_data_ptr<int64_t>() + i * top.size(1);
    const int64_t* end = begin + top.size(1);
    accuracy_.sum += predicted[i] == index ? 1 : 0;
    accuracy_.count += 1;
    top_k_.sum += std::find(begin, end, index) != end ? 1 : 0;
    top_k_.count += 1;
    if (classes_ != 0) {
      ++confusion_[static_cast<size_t>(index * classes_ + predicted[i])];
    }
    if (!overlaps_.empty()) {
      overlaps_[static_cast<size_t>(index)].sum += predicted[i] == index ? 1 : 0;
      overlaps_[static_cast<size_t>(index)].count += 1;
      overlaps_[static_cast<size_t>(predicted[i])].count += predicted[i] == index ? 0 : 1;
    }
  }
}

void Evaluation::AddErrors(const at::Tensor& output, const TargetRows& rows) {
  const at::Tensor target = ViewRows(rows.target(), rows.start, rows.rows);
  const at::Tensor error = output.to(at::kDouble).sub(target.to(output.device(), at::kDouble));
  squares_.sum += error.square().sum().item<double>();
  squares_.count += static_cast<double>(error.numel());
  distances_.sum += error.abs().sum().item<double>();
  distances_.count += static_cast<double>(error.numel());
}

void Evaluation::AddMasks(const at::Tensor& output, const TargetRows& rows) {
  const at::Tensor target = ViewRows(rows.target(), rows.start, rows.rows);
  const at::Tensor predicted = output.gt(0).cpu();
  const at::Tensor wanted = target.gt(0.5);
  binary_accuracy_.sum += predicted.eq(wanted).sum().item<double>();
  binary_accuracy_.count += static_cast<double>(wanted.numel());
  if (overlaps_.empty()) {
    return;
  }
  const auto by_class = [](const at::Tensor& elements) {
    return elements.movedim(1, 0).flatten(1).sum(1).to(at::kDouble);
  };
  const at::Tensor both = by_class(predicted.logical_and(wanted));
  const at::Tensor either = by_class(predicted.logical_or(wanted));
  for (size_t c = 0; c < overlaps_.size(); ++c) {
    overlaps_[c].sum += both.const_data_ptr<double>()[c];
    overlaps_[c].count += either.const_data_ptr<double>()[c];
  }
}

void Evaluation::AddSequences(const at::Tensor& output, const TargetRows& rows) {
  const at::Tensor best = output.argmax(2).cpu().contiguous();
  const ClassIndices indices(rows);
  const ClassIndices lengths(rows, rows.targets[1]);
  const int64_t size = rows.target().shape[1];
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t steps = objective_->measured().input_lengths.empty()
                              ? best.size(1)
                              : ClassIndices(rows, rows.targets[2])[r];
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < lengths[r]; ++i) {
      wanted.push_back(indices[r * size + i]);
    }
    label_errors_.sum += static_cast<double>(
        EditDistance(DecodeGreedily(best.const_data_ptr<int64_t>() + r * best.size(1), steps,
                                    objective_->measured().blank),
                     wanted));
    label_errors_.count += static_cast<double>(lengths[r]);
  }
}

double Evaluation::MeanOverlap() const {
  Ratio mean;
  for (const Ratio& overlap : overlaps_) {
    mean.sum += overlap.count > 0 ? overlap.value() : 0;
    mean.count += overlap.count > 0 ? 1 : 0;
  }
  return mean.value();
}

double Evaluation::ValueOf(Metric metric) const {
  switch (metric) {
    case Metric::kAccuracy:
      return accuracy_.value();
    case Metric::kTopK:
      return top_k_.value();
    case Metric::kMse:
      return squares_.value();
    case Metric::kMae:
      return distances_.value();
    case Metric::kBinaryAccuracy:
      return binary_accuracy_.value();
    case Metric::kIou:
      return MeanOverlap();
    case Metric::kLabelErrorRate:
      return label_errors_.value();
    case Metric::kConfusion:
      break;
  }
  return 0;
}

EvaluationResult Evaluation::Result() const {
  EvaluationResult result;
  result.rows = rows_;
  result.confusion = confusion_;
  for (size_t i = 0; i < losses_.size(); ++i) {
    const LossSpec& spec = objective_->losses()[i].spec();
    result.loss =
        result.loss.value_or(0) +
        spec.weight * (spec.reduction == Reduction::kSum ? losses_[i].sum : losses_[i].value());
  }
  for (const Metric metric : metrics_) {
    if (metric != Metric::kConfusion) {  // a table
      result.metrics[NameOf(metric)] = ValueOf(metric);
    }
  }
  return result;
}

}  // namespace braid

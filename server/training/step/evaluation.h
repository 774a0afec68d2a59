// Losses and metrics of an evaluation, accumulated over its batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"
#include "server/training/loss/objective.h"
#include "server/training/trainer/evaluation_result.h"

namespace braid {

// Thread-compatible: one batch at a time adds to it.
class Evaluation {
 public:
  // `metrics`: any of "accuracy", "top_k", "confusion", "mse", "mae", "binary_accuracy", "iou" and
  // "label_error_rate", which compare output and target of Objective::measured(). `k`: of top_k.
  // INVALID_ARGUMENT naming metrics[i] or k; FAILED_PRECONDITION for no metrics if the client
  // computes the loss, for metrics if the first loss takes no target, and for label_error_rate of a
  // loss other than ctc.
  static absl::StatusOr<Evaluation> Create(const std::vector<std::string>& metrics, int64_t k,
                                           std::shared_ptr<const Objective> objective);

  // Checks that the metrics match the model's outputs and the targets of one row each, [1, …],
  // which need no data. Errors as Objective::PickTargets() and Add().
  absl::Status CheckTargets(const std::vector<HostTensor>& targets,
                            const ModelConfig& config) const;

  // Adds rows [start, start + rows) of a batch. `outputs`: of these rows, on the device of the
  // calling worker. `targets`: of the whole batch, from Objective::PickTargets(). Errors: those of
  // Objective::Compute(); INVALID_ARGUMENT or FAILED_PRECONDITION naming metrics[i] for a metric
  // that does not match output or target. After an error the evaluation cannot be used.
  absl::Status Add(const std::vector<at::Tensor>& outputs, const std::vector<HostTensor>& targets,
                   int64_t start, int64_t rows);

  // Adds a chunk's outputs, where the model computes its loss. `weight`: of the chunk's mean
  // relative to other chunks.
  absl::Status AddChunk(const std::vector<at::Tensor>& outputs, int64_t rows, double weight);

  EvaluationResult Result() const;

 private:
  enum class Metric {
    kAccuracy,
    kTopK,
    kConfusion,
    kMse,
    kMae,
    kBinaryAccuracy,
    kIou,
    kLabelErrorRate
  };
  // A mean: sum and denominator.
  struct Ratio {
    double sum = 0;
    double count = 0;

    double value() const { return sum / count; }
  };

  Evaluation(std::vector<Metric> metrics, int64_t k, std::shared_ptr<const Objective> objective)
      : metrics_(std::move(metrics)),
        k_(k),
        objective_(std::move(objective)),
        losses_(objective_->losses().size()) {}

  static absl::StatusOr<Metric> MetricOf(const std::vector<std::string>& names, size_t i);
  static const char* NameOf(Metric metric);
  bool Measures(Metric metric) const;
  // Returns true if the metric reads this target as class indices.
  static bool TakesClasses(Metric metric, const HostTensor& target);

  absl::Status AddLosses(const std::vector<at::Tensor>& outputs,
                         const std::vector<HostTensor>& targets, int64_t start, int64_t rows);
  // Check the shape of the output; -1: unknown. CheckRows(), which losses do too if there are any,
  // comes first.
  absl::Status CheckRows(size_t i, const std::vector<int64_t>& output, int64_t rows) const;
  absl::Status CheckForm(size_t i, const std::vector<int64_t>& output,
                         const HostTensor& target) const;
  std::string OutputName() const;
  absl::Status CheckClassCount(size_t i, int64_t counted, int64_t classes) const;
  absl::Status GrowConfusion(size_t i, int64_t classes);
  absl::Status GrowOverlaps(size_t i, int64_t classes);
  void AddClasses(const at::Tensor& output, const TargetRows& rows);
  void AddErrors(const at::Tensor& output, const TargetRows& rows);
  void AddMasks(const at::Tensor& output, const TargetRows& rows);
  void AddSequences(const at::Tensor& output, const TargetRows& rows);
  double MeanOverlap() const;
  double ValueOf(Metric metric) const;

  // Immutable.
  std::vector<Metric> metrics_;
  int64_t k_;
  std::shared_ptr<const Objective> objective_;

  int64_t rows_ = 0;
  std::vector<Ratio> losses_;  // unweighted
  Ratio accuracy_;
  Ratio top_k_;
  Ratio squares_;
  Ratio distances_;
  Ratio binary_accuracy_;
  Ratio label_errors_;           // edit distances over the lengths of the targets
  std::vector<Ratio> overlaps_;  // by class: intersection over union
  int64_t classes_ = 0;          // of confusion_
  std::vector<int64_t> confusion_;
};

}  // namespace braid

// Losses and metrics over the batches of an evaluation, as if they were one.
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
#include "server/training/loss/objective.h"
#include "server/training/trainer/evaluation_result.h"

namespace braid {

// Thread-compatible.
class Evaluation {
 public:
  // `metrics`: of "accuracy", "top_k", "confusion", "mse" and "mae", of Objective's measured()
  // output and target; `k` is top_k's. INVALID_ARGUMENT naming metrics[i] or k; FAILED_PRECONDITION
  // for no metric where the client computes the loss, and for one where the model does.
  static absl::StatusOr<Evaluation> Create(const std::vector<std::string>& metrics, int64_t k,
                                           std::shared_ptr<const Objective> objective);

  // Rows [start, start + rows) of a batch's targets, as Objective::PickTargets() gave them, with
  // the model's outputs for them, on the device of the calling worker's thread. Errors are
  // Objective::Compute()'s, and INVALID_ARGUMENT or FAILED_PRECONDITION naming metrics[i] for one
  // that does not go with output or target; after one the evaluation is of no use.
  absl::Status Add(const std::vector<at::Tensor>& outputs, const std::vector<HostTensor>& targets,
                   int64_t start, int64_t rows);

  // A chunk's outputs, where the model computes its loss. `weight`: of their mean, against the
  // other chunks'.
  absl::Status AddChunk(const std::vector<at::Tensor>& outputs, int64_t rows, double weight);

  EvaluationResult Result() const;

 private:
  enum class Metric { kAccuracy, kTopK, kConfusion, kMse, kMae };
  // A mean: what is summed, and what it divides by.
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

  absl::Status AddLosses(const std::vector<at::Tensor>& outputs,
                         const std::vector<HostTensor>& targets, int64_t start, int64_t rows);
  // Which losses have checked already, where the server computes one.
  absl::Status CheckRows(size_t i, const at::Tensor& output, int64_t rows) const;
  absl::Status CheckForm(size_t i, const at::Tensor& output, const HostTensor& target) const;
  absl::Status GrowConfusion(size_t i, int64_t classes);
  void AddClasses(const at::Tensor& output, const TargetRows& rows);
  void AddErrors(const at::Tensor& output, const TargetRows& rows);

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
  int64_t classes_ = 0;  // of confusion_
  std::vector<int64_t> confusion_;
};

}  // namespace braid

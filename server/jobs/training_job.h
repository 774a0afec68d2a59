// Job that trains a model on a dataset, and the interfaces that it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/data/encoded/decode_rows.h"
#include "server/jobs/in_flight.h"
#include "server/jobs/job.h"
#include "server/jobs/job_record.h"
#include "server/jobs/paced_check.h"
#include "server/jobs/skipped_rows.h"
#include "server/training/trainer/evaluation_result.h"
#include "server/training/trainer/operation.h"

namespace braid {

struct TrainingBatch {
  std::vector<HostTensor> inputs;
  std::vector<HostTensor> targets;
  int64_t rows = 0;
  std::vector<SkippedRow> skipped;  // rows that were left out of the batch
  absl::Duration waited;            // time that Next() waited for data
};

// Batches in their order. Thread-compatible.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  // Waits for the next batch. Returns nullopt at the end of the data.
  virtual absl::StatusOr<std::optional<TrainingBatch>> Next() = 0;
};

// Rows of a dataset, cut into batches. Batch number i is the same after every Open().
// Thread-compatible. Methods block.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Prepares the data and returns the rows of one pass, without rows that another part of a split
  // has. Logs what takes long. `identity` is what the job remembers of the data: set if it is
  // empty; otherwise FAILED_PRECONDITION, naming the path, if the data is another. CANCELLED if the
  // job must stop.
  virtual absl::StatusOr<int64_t> Rows(JobContext* context, std::string* identity) = 0;
  // Starts to read at batch number `first`, counted from 0 over all passes. A source for training
  // has no end; one for evaluation ends after one pass. Valid after Rows().
  virtual absl::StatusOr<std::unique_ptr<BatchStream>> Open(int64_t first) = 0;
  // Checks that the files are those that Rows() opened, where reading them does not: a table is
  // read once. Errors as Rows().
  virtual absl::Status CheckUnchanged() = 0;
  // Returns the row of the dataset that is row `row` of batch number `batch`. Valid after Rows().
  virtual int64_t DatasetRow(int64_t batch, int64_t row) const = 0;
};

// The trainer of a job. Thread-compatible. Methods block, except Step().
class JobTrainer {
 public:
  // Numbers of the last operation that was applied, and of the last in a checkpoint. A job numbers
  // its operations from 1: operation i is batch i - 1.
  struct Position {
    int64_t applied = 0;
    int64_t durable = 0;
    std::optional<double> loss;  // of the operation `applied`
  };
  virtual ~JobTrainer() = default;

  // Makes the trainer ready: continues with the one in memory, restores it from its newest
  // checkpoint, or creates it. `best`: result of the last KeepBest(), which must stay; empty: none.
  // `total_steps`: of the job, for a schedule that needs them. `before_checkpoint`: called by any
  // thread before a checkpoint is written, after `done` of the steps in it, until Close().
  virtual absl::StatusOr<Position> Open(const std::string& best, int64_t total_steps,
                                        std::function<void()> before_checkpoint) = 0;
  // Waits for a running call of `before_checkpoint`, which is not called afterwards.
  virtual void Close() = 0;
  // Queues a training step as operation `sequence`. Calls `done` once, on any thread; steps end in
  // their order, and after one that fails, later ones fail as well.
  virtual void Step(int64_t sequence, TrainingBatch batch, OperationDone done) = 0;
  // Computes loss and the job's metrics in eval mode. Returns errors of `batches` as they are.
  virtual absl::StatusOr<EvaluationResult> Evaluate(BatchStream* batches) = 0;
  virtual absl::Status SaveCheckpoint() = 0;
  // Writes a checkpoint that stays until the next call, besides those of the checkpoint policy.
  // Returns its name.
  virtual absl::StatusOr<std::string> KeepBest() = 0;
  // Restores a result of KeepBest().
  virtual absl::Status RestoreBest(const std::string& checkpoint) = 0;
  // Publishes the weights after `step` and returns the version. Returns the same version if it is
  // called again after a crash, also after another RestoreBest().
  virtual absl::StatusOr<int64_t> Publish(int64_t step) = 0;
  // Frees the trainer's memory after a last checkpoint. No-op if there is no trainer.
  virtual void Release() = 0;
};

enum class JobPublish { kNothing, kLast, kBest };

// Ends the training after `patience` evaluations in a row in which the metric did not exceed its
// best value so far by more than `min_delta`. NaN is never better.
struct EarlyStopping {
  std::string metric;  // "loss" or a metric of EvaluationResult
  bool larger_is_better = false;
  int64_t patience = 1;
  double min_delta = 0;
};

// Course of a training job. One of `epochs` and `steps` is set.
struct TrainingPlan {
  int64_t epochs = 0;
  int64_t steps = 0;
  int64_t batch_size = 1;
  bool drop_last = false;
  // Interval of evaluations; both 0: 1 epoch. Used if there is an evaluation source.
  int64_t evaluate_epochs = 0;
  int64_t evaluate_steps = 0;
  JobPublish publish = JobPublish::kNothing;
  // "loss" or a metric of EvaluationResult. Better if larger: LargerIsBetter().
  std::string best_metric = "loss";
  std::optional<EarlyStopping> early_stopping = std::nullopt;  // needs an evaluation source
};

// Returns true for the metrics "accuracy", "top_k", "binary_accuracy" and "iou".
bool LargerIsBetter(absl::string_view metric);

// Returns the rows of the first `steps` batches of data with `rows` rows.
int64_t RowsInSteps(int64_t steps, int64_t rows, const TrainingPlan& plan);

// The error of data from which no batch can be made.
absl::Status NoBatches(int64_t batch_size, int64_t rows);

// Progress is derived from the trainer's operations, so a crash never loses or repeats a batch: the
// job continues with the batch after the newest checkpoint.
class TrainingJob final : public Job {
 public:
  // Steps that the trainer has at a time: while it computes one, the next waits.
  static constexpr size_t kDepth = 2;

  // `evaluation`: nullptr: none. `record`: of the job, for its progress and memory.
  TrainingJob(TrainingPlan plan, std::unique_ptr<JobTrainer> trainer,
              std::unique_ptr<BatchSource> data, std::unique_ptr<BatchSource> evaluation,
              const JobRecord& record);

  // INVALID_ARGUMENT naming spec.train.… if the data has no batch.
  absl::StatusOr<JobResult> Run(JobContext* context) override;
  void CleanUp() override { trainer_->Release(); }

 private:
  // State that the job stores in its record.
  struct Memory {
    std::string data;                       // identity of the training data; empty: not opened yet
    std::string evaluation_data;            // of the evaluation data, if there is any
    int64_t evaluated = 0;                  // step of the last evaluation
    std::map<std::string, double> metrics;  // of that evaluation; without any, of the last step
    int64_t best_step = 0;                  // 0: no evaluation was best yet
    std::string best_checkpoint;
    std::map<std::string, double> best_metrics;
    bool trained = false;  // only publishing is left
    int64_t step = 0;      // of the result; set when trained
    int64_t version = 0;   // published; 0: not yet
    // Early stopping: best value so far, evaluations since then, the step at which the training
    // ends (0: at its planned end), and the planned end.
    std::optional<double> stopping_best;
    int64_t stopping_waited = 0;
    int64_t stopped_step = 0;
    int64_t planned_steps = 0;
    SkippedRows skipped;  // by step
  };
  using Steps = InFlight<OperationResult, TrainingBatch>;

  static absl::StatusOr<Memory> ReadMemory(const std::string& text);
  std::string WriteMemory() const;

  // Prepares the data, remembers which it is, and sets rows_, steps_per_epoch_ and total_steps_.
  absl::Status CountSteps(JobContext* context);
  absl::StatusOr<JobTrainer::Position> OpenTrainer(JobContext* context, int64_t total_steps);
  // Sets the progress to that of a trainer at `position`, which has applied `step` steps.
  absl::Status Resume(JobContext* context, const JobTrainer::Position& position, int64_t step);
  // Trains from the position to the end, with all evaluations.
  absl::Status Train(JobContext* context, const JobTrainer::Position& position);
  // Checks the data from time to time.
  absl::Status CheckData();
  // Returns the error of a step with its number, and with the row of the dataset where `error`
  // names a row of the batch, or where an input that is not finite explains it.
  absl::Status StepError(int64_t step, const TrainingBatch& batch, const absl::Status& error) const;
  // Returns " (input 'x' …)" for the first input of the step that is not finite; empty if none is.
  std::string DescribeNotFinite(int64_t step) const;
  // Remembers the rows that are left out of a step, before it is made.
  absl::Status AddSkipped(JobContext* context, int64_t step, const std::vector<SkippedRow>& rows);
  // Starts step `step`.
  void StartStep(JobContext* context, int64_t step, TrainingBatch batch, Steps* steps);
  // Takes the result of the oldest step.
  absl::Status Collect(JobContext* context, Steps* steps);
  absl::Status Stop(JobContext* context);
  // Writes a checkpoint of the current step.
  absl::Status Checkpoint(JobContext* context);
  bool EvaluationDue(int64_t step) const;
  absl::Status Evaluate(JobContext* context, int64_t step);
  // Takes the evaluation at `step` into account, and ends the training there if it must stop.
  absl::Status CheckEarlyStopping(const EarlyStopping& rule, int64_t step);
  // Returns the step after which the training ends: the planned one, or an earlier one.
  int64_t LastStep() const;
  // Returns why the training has ended early; empty if it has not.
  std::string StopReason() const;
  // Records that no step is left.
  absl::Status FinishTraining(JobContext* context);
  bool MustPublish() const;
  absl::Status Publish(JobContext* context);
  JobResult Result() const;
  void SetPosition(int64_t step);
  int64_t RowsBefore(int64_t step) const;
  absl::Status Save(JobContext* context) { return context->Save(progress_, WriteMemory()); }

  const TrainingPlan plan_;
  const std::unique_ptr<JobTrainer> trainer_;
  const std::unique_ptr<BatchSource> data_;
  const std::unique_ptr<BatchSource> evaluation_;
  const std::string stored_memory_;
  const bool crashed_;

  JobProgress progress_;
  // Set by Run().
  Memory memory_;
  int64_t rows_ = 0;  // of one pass
  int64_t steps_per_epoch_ = 0;
  int64_t total_steps_ = 0;  // as planned
  SkippedRowLog skipped_log_;
  PacedCheck data_check_;
};

}  // namespace braid

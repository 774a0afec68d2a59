// Job that runs a model on all rows of a dataset, and the interfaces that it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/batching/inference_request.h"
#include "server/data/encoded/decode_rows.h"
#include "server/jobs/in_flight.h"
#include "server/jobs/job.h"
#include "server/jobs/job_record.h"
#include "server/jobs/paced_check.h"
#include "server/jobs/skipped_rows.h"

namespace braid {

// Rows of a dataset from `first` on: `count` rows, and those that were left out among them. They
// are written together, after all their requests have succeeded.
struct InputRows {
  struct Request {
    std::vector<HostTensor> inputs;  // with dim 0 = rows of the request
    // Positions of its rows, in [0, count). Empty: the request has all rows, in order.
    std::vector<int64_t> positions = {};

    int64_t rows() const { return inputs.front().rows(); }
  };

  int64_t first = 0;
  int64_t count = 0;  // 0: only at the end of the data
  std::vector<SkippedRow> skipped;
  std::vector<Request> requests;  // each row is in one of them
  // Columns that are copied to the output, as the output reads them; nullptr: none.
  std::shared_ptr<const void> kept;
  absl::Duration waited;  // time that Next() waited for data

  // Row of the dataset after these.
  int64_t end() const { return first + count + static_cast<int64_t>(skipped.size()); }
};

// Rows of a dataset in their order. Thread-compatible.
class RowStream {
 public:
  virtual ~RowStream() = default;
  // Waits for the next rows. Returns nullopt at the end of the data. They have one request of at
  // most `max_rows`; or, if that saves padding, several of rows of similar length, which have at
  // most `window_rows` together. The values may be those of an earlier call for rows that are
  // prepared ahead, except that a single request never has more than `max_rows`.
  virtual absl::StatusOr<std::optional<InputRows>> Next(int64_t max_rows, int64_t window_rows) = 0;
};

// Dataset of an inference job. Thread-compatible. Methods block.
class InputSource {
 public:
  virtual ~InputSource() = default;
  // Opens the data and returns its rows. `identity` as in BatchSource::Rows().
  virtual absl::StatusOr<int64_t> Rows(JobContext* context, std::string* identity) = 0;
  // Starts to read at a row. Valid after Rows().
  virtual absl::StatusOr<std::unique_ptr<RowStream>> Open(int64_t first_row) = 0;
  // Checks that the files are those that Rows() opened, where reading them does not. Errors as
  // Rows(). Valid after Rows().
  virtual absl::Status CheckUnchanged() = 0;
};

// A served model, reached behind interactive requests. Thread-compatible.
class JobModel {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<InferenceResult>)>;
  virtual ~JobModel() = default;

  // Keeps a version for this job, also if it is no longer served. 0: the newest. Returns it.
  virtual absl::StatusOr<int64_t> Open(int64_t version) = 0;
  // Rows of the next request, and number of requests that keep all devices busy. Valid after
  // Open().
  virtual int64_t request_rows() const = 0;
  virtual size_t max_in_flight() const = 0;
  // True if the result of a row does not depend on the other rows of its request. Valid after
  // Open().
  virtual bool independent_rows() const = 0;
  // Queues a request. Calls `done` once: each output has `rows` rows. `inputs` may be in any order.
  virtual void Infer(std::vector<HostTensor> inputs, int64_t rows, Done done) = 0;
};

// Result of one of the requests of InputRows.
struct ScoredRequest {
  std::vector<int64_t> positions;  // see InputRows::Request
  InferenceResult result;
};

// Output of a job, written in parts. Thread-compatible. Methods block.
class JobOutput {
 public:
  virtual ~JobOutput() = default;

  // Creates the output, or continues one of this job. Returns the rows of its complete parts, all
  // rows after Close(). Removes an incomplete part. ALREADY_EXISTS naming spec.infer.output.path
  // for an output of somebody else.
  virtual absl::StatusOr<int64_t> Open() = 0;
  // Appends rows. Completes a part when it is large enough. Returns the rows of complete parts,
  // which are on disk.
  virtual absl::StatusOr<int64_t> Write(const InputRows& rows, const InferenceResult& result) = 0;
  // Completes the last part, if it has rows. Returns the rows of complete parts.
  virtual absl::StatusOr<int64_t> FinishPart() = 0;
  // Makes the parts the output, in a file or directory, and returns its absolute path. May be
  // called again.
  virtual absl::StatusOr<std::string> Close() = 0;
  // Uploads the output after Close(), if it belongs in S3, and returns where it is: "s3://..." or
  // the path of Close(). May be called again.
  virtual absl::StatusOr<std::string> Upload() = 0;
  // Removes what is left of parts, and the local copy of an uploaded output. Keeps an output that
  // stays where Close() put it, which Open() then takes for one of somebody else.
  virtual void Discard() = 0;
};

// Each row is in the output once, in order: after a crash, the job continues after the last
// complete part.
class InferenceJob final : public Job {
 public:
  // `version`: 0: the newest when the job first starts. `record`: of the job, for its progress and
  // memory.
  InferenceJob(int64_t version, std::unique_ptr<JobModel> model, std::unique_ptr<InputSource> input,
               std::unique_ptr<JobOutput> output, const JobRecord& record);

  absl::StatusOr<JobResult> Run(JobContext* context) override;
  // Keeps an output that is complete and could not be uploaded.
  void CleanUp() override;

 private:
  // State that the job stores in its record.
  struct Memory {
    std::string data;     // identity of the data; empty: not opened yet
    int64_t version = 0;  // 0: not chosen yet
    std::string output;   // absolute path; empty: not complete yet
    int64_t rows = 0;     // of the output
    SkippedRows skipped;  // by row of the output
  };
  // Rows whose requests were sent.
  struct Window {
    InputRows rows;      // without requests
    size_t waiting = 0;  // requests without a result
    std::vector<ScoredRequest> scored;
  };
  struct Sent {
    std::shared_ptr<Window> window;
    std::vector<int64_t> positions;  // see InputRows::Request
  };
  using Requests = InFlight<InferenceResult, Sent>;

  static absl::StatusOr<Memory> ReadMemory(const std::string& text);
  std::string WriteMemory() const;

  // Scores the rows that are missing, and completes the output.
  absl::Status WriteOutput(JobContext* context);
  // Opens the version that an earlier run used, or the one that was asked for.
  absl::Status OpenModel(JobContext* context);
  // Remembers the rows that are left out, before the rows after them are written.
  absl::Status AddSkipped(JobContext* context, const InputRows& rows);
  // Scores all rows from `first_row` of the dataset on.
  absl::Status Score(JobContext* context, int64_t first_row);
  // Returns how many of the next rows may be sorted by length. Bounds the results in memory, and
  // the work that a crash loses.
  int64_t WindowRows(int64_t request_rows) const;
  // Sends the requests of the rows, until the job must stop.
  absl::Status Send(JobContext* context, InputRows rows, Requests* requests);
  // Takes the result of the oldest request. Writes the rows of its window after the last one.
  absl::Status Collect(JobContext* context, Requests* requests);
  absl::Status Stop(JobContext* context);
  // Completes the output, and uploads it. Tries again for about ten minutes if the upload fails:
  // the scores may have taken hours. Returns where the output is. CANCELLED if the job must stop.
  absl::StatusOr<std::string> CloseOutput(JobContext* context);
  // Records that `rows` of the output are in complete parts, and shows the progress.
  absl::Status SetDurable(JobContext* context, int64_t rows);

  const int64_t version_;
  const std::unique_ptr<JobModel> model_;
  const std::unique_ptr<InputSource> input_;
  const std::unique_ptr<JobOutput> output_;
  const std::string stored_memory_;
  const bool crashed_;

  JobProgress progress_;
  Memory memory_;            // set by Run()
  int64_t output_rows_ = 0;  // written
  // Start of this run and rows scored since, for WindowRows().
  absl::Time started_;
  int64_t scored_rows_ = 0;
  size_t output_row_bytes_ = 1;  // most bytes of the outputs of a row
  bool upload_failed_ = false;
  SkippedRowLog skipped_log_;
  PacedCheck data_check_;
};

}  // namespace braid

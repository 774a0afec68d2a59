#include "server/batching/background_queue.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "server/batching/run_inference.h"

namespace braid {
namespace {

// Workers that have had other work within this time are expected to get more.
constexpr absl::Duration kQuietTime = absl::Seconds(1);
// Mean time of a batch on such a worker. Single batches take up to 10 ms.
constexpr absl::Duration kShortTime = absl::Milliseconds(8);
constexpr absl::Duration kRequestTime = absl::Milliseconds(50);
constexpr int64_t kMaxBatchRows = 1 << 20;
// Bytes of the inputs and outputs of a batch, and of a request of several batches.
constexpr int64_t kMaxBatchBytes = int64_t{32} << 20;
constexpr int64_t kMaxRequestBytes = int64_t{16} << 20;
constexpr int64_t kMinBatchesPerRequest = 2;  // so that larger batches can be tried

int64_t MaxRowsOf(const ModelConfig& config, int64_t max_rows) {
  if (!config.merges_requests()) {
    return 1;
  }
  // If it is not configured, max_batch_size is a default for requests, not a limit of the model.
  const int64_t limit = config.batching_declared ? config.max_batch_size : config.max_rows;
  return std::min({limit, max_rows > 0 ? max_rows : limit, kMaxBatchRows});
}

int64_t BytesOf(const InferenceRequest& request, const InferenceResult& result) {
  size_t bytes = 0;
  for (const HostTensor& input : request.inputs()) {
    bytes += input.bytes;
  }
  for (const GatheredTensor& output : result.outputs) {
    bytes += output.bytes;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

BackgroundQueue::BackgroundQueue(std::shared_ptr<const BatchQueue> version, int64_t max_rows,
                                 Metrics* metrics)
    : version_(std::move(version)),
      metrics_(metrics, version_->config().name),
      max_rows_(MaxRowsOf(version_->config(), max_rows)),
      warm_(version_->replicas().size()) {}

void BackgroundQueue::Start() {
  for (Worker* worker : version_->replicas().workers()) {
    worker->AddSource(weak_from_this(), /*background=*/true);
  }
}

void BackgroundQueue::Push(std::shared_ptr<InferenceRequest> request) {
  request->EnterQueue(shared_from_this(), {});
  {
    const absl::MutexLock lock(&mu_);
    const int64_t rows = request->rows();
    waiting_.push_back({std::move(request), 0, rows});
  }
  for (Worker* worker : version_->replicas().workers()) {
    worker->Wake();
  }
}

int64_t BackgroundQueue::request_rows() const {
  const absl::Duration max_time = MaxTime(absl::Now());
  const absl::MutexLock lock(&mu_);
  const int64_t batch = cost_.BestRows(MaxRows(), max_time);
  // 0 batches if the time is not known yet.
  int64_t batches = static_cast<int64_t>(absl::FDivDuration(kRequestTime, cost_.Predict(batch)));
  if (row_bytes_ > 0) {
    batches = std::min(batches, kMaxRequestBytes / row_bytes_ / batch);
  }
  return batch * std::max(batches, kMinBatchesPerRequest);
}

absl::Duration BackgroundQueue::MaxTime(absl::Time now) const {
  const std::vector<Worker*>& workers = version_->replicas().workers();
  const bool quiet = std::all_of(workers.begin(), workers.end(), [now](const Worker* worker) {
    // Also true if the clock was set back.
    return absl::AbsDuration(now - worker->last_foreground()) > kQuietTime;
  });
  return quiet ? absl::InfiniteDuration() : kShortTime;
}

int64_t BackgroundQueue::MaxRows() const {
  return row_bytes_ == 0 ? max_rows_
                         : std::clamp<int64_t>(kMaxBatchBytes / row_bytes_, 1, max_rows_);
}

int64_t BackgroundQueue::NextRows(absl::Time now) {
  constexpr int64_t kExploreInterval = 32;
  const absl::Duration max_time = MaxTime(now);
  const int64_t best = cost_.BestRows(MaxRows(), max_time);
  // Larger batches may have become better since they were measured.
  const int64_t larger = std::min(2 * best, MaxRows());
  const bool explores = ++batches_ % kExploreInterval == 0 && cost_.Predict(larger) <= max_time;
  return explores ? larger : best;
}

WorkSource::Next BackgroundQueue::Take(const Worker& worker, absl::Time now) {
  const absl::MutexLock lock(&mu_);
  while (!waiting_.empty()) {
    RequestRows& rest = waiting_.front();
    if (!rest.request->TryStart(now)) {
      waiting_.pop_front();
      continue;
    }
    const RequestRows taken{rest.request, rest.start, std::min(rest.count, NextRows(now))};
    rest.start += taken.count;
    rest.count -= taken.count;
    if (rest.count == 0) {
      waiting_.pop_front();
    }
    return Work([self = shared_from_this(), replica = version_->ReplicaOf(worker), taken] {
      self->Run(replica, taken);
    });
  }
  return absl::InfiniteFuture();
}

void BackgroundQueue::Remove(const InferenceRequest& request) {
  const absl::MutexLock lock(&mu_);
  std::erase_if(waiting_, [&](const RequestRows& rows) { return rows.request.get() == &request; });
}

void BackgroundQueue::Complete(const InferenceRequest& request, InferenceRequest::Done done,
                               absl::StatusOr<InferenceResult> result) {
  if (result.ok()) {
    const absl::MutexLock lock(&mu_);
    row_bytes_ = std::max(row_bytes_, BytesOf(request, *result) / request.rows());
  }
  done(std::move(result));
}

void BackgroundQueue::Run(size_t replica, const RequestRows& rows) {
  Worker& worker = version_->replicas().worker(replica);
  const absl::Time start = absl::Now();
  const absl::Status status = version_->RunBatch(
      replica, /*take=*/[&] { return absl::MakeConstSpan(&rows, 1); },
      /*reply=*/
      [&](BatchResult result) {
        Record(replica, rows.count, absl::Now() - start);
        worker.CountChunk(DeviceWork::kJob, rows.count);
        metrics_.CountJobBatch(rows.count);
        rows.request->Finish(rows.start, rows.count, std::move(result.outputs.front()),
                             worker.name(), version_->version(), result.durations);
      });
  if (absl::IsResourceExhausted(status) && rows.count > 1) {
    RunHalves(replica, rows);
  } else if (!status.ok()) {
    rows.request->Fail(status);
  }
}

void BackgroundQueue::RunHalves(size_t replica, const RequestRows& rows) {
  const int64_t half = rows.count / 2;
  {
    const absl::MutexLock lock(&mu_);
    max_rows_ = std::min(max_rows_, half);
  }
  // The second half counts as started before the first can complete the request.
  const bool started = rows.request->TryStart(absl::Now());
  Run(replica, {rows.request, rows.start, half});
  if (started) {
    Run(replica, {rows.request, rows.start + half, rows.count - half});
  }
}

void BackgroundQueue::Record(size_t replica, int64_t rows, absl::Duration time) {
  const uint64_t size = std::bit_floor(static_cast<uint64_t>(rows));
  const absl::MutexLock lock(&mu_);
  // The first batch of a size may allocate memory and choose kernels.
  if ((warm_[replica] & size) != 0) {
    cost_.Record(rows, time);
  }
  warm_[replica] |= size;
}

}  // namespace braid

#include "server/batching/batch_queue.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/parallel/replica_bytes.h"

namespace braid {
namespace {

// Waking a worker takes about as long as a batch of this duration.
constexpr absl::Duration kShortBatch = absl::Microseconds(200);

std::vector<int64_t> BytesOfAll(const ReplicaSet& replicas) {
  std::vector<int64_t> bytes;
  for (size_t r = 0; r < replicas.size(); ++r) {
    bytes.push_back(BytesOf(replicas.replica(r)));
  }
  return bytes;
}

int64_t CountOf(const std::vector<RequestRows>& batch) {
  int64_t count = 0;
  for (const RequestRows& rows : batch) {
    count += rows.count;
  }
  return count;
}

}  // namespace

BatchQueue::Shared::Shared(ReplicaSet all)
    : replicas(std::move(all)), bytes(BytesOfAll(replicas)), packed(replicas) {}

BatchQueue::BatchQueue(ModelConfig config, int64_t version, ReplicaSet replicas, Metrics* metrics,
                       ExpiryThread* expiries)
    : BatchQueue(std::move(config), version, std::make_shared<Shared>(std::move(replicas)), metrics,
                 expiries) {}

BatchQueue::BatchQueue(ModelConfig config, const BatchQueue& before, Metrics* metrics,
                       ExpiryThread* expiries)
    : BatchQueue(std::move(config), before.version_, before.shared_, metrics, expiries) {}

BatchQueue::BatchQueue(ModelConfig config, int64_t version, std::shared_ptr<Shared> shared,
                       Metrics* metrics, ExpiryThread* expiries)
    : config_(std::move(config)),
      version_(version),
      shared_(std::move(shared)),
      expiries_(expiries),
      metrics_(metrics, config_.name),
      batcher_(config_) {
  if (config_.preserve_ordering) {
    ordered_replies_ = std::vector<OrderedReplies>(batcher_.levels());
    if (std::any_of(config_.inputs.begin(), config_.inputs.end(),
                    [](const TensorSpec& input) { return input.decoder != nullptr; })) {
      arrivals_ = std::make_unique<OrderedReplies>();
    }
  }
}

absl::Status BatchQueue::Push(std::shared_ptr<InferenceRequest> request, RunMode mode) {
  int64_t wanted = 0;
  bool run_inline = false;
  std::vector<std::shared_ptr<InferenceRequest>> expired;
  bool expires = false;
  absl::Status added;
  {
    const absl::MutexLock lock(&mu_);
    const int64_t before = batcher_.rows();
    expired = batcher_.Expire(request->schedule().arrival);  // frees their places
    const int64_t waiting = batcher_.rows();
    const absl::StatusOr<size_t> level = batcher_.Add(request);
    added = level.status();
    if (added.ok()) {
      const bool ordered = config_.preserve_ordering;
      request->EnterQueue(shared_from_this(),
                          {*level, ordered ? ordered_replies_[*level].Reserve() : 0});
    }
    CountQueued(before);
    wanted = WorkersWanted();
    run_inline = mode == RunMode::kMayRunInline && waiting == 0 && retry_queue_.empty() &&
                 short_batches_ == 0 && cost_.Predict(batcher_.rows()) <= kShortBatch;
    expires = batcher_.next_expiry() < scheduled_expiry_;
  }
  FailExpired(expired);
  BRAID_RETURN_IF_ERROR(added);
  if (!run_inline || !RunInline()) {
    WakeWorkers(wanted);
    // A request that ran inline has nothing left to expire.
    if (expires && expiries_ != nullptr) {
      expiries_->Add(ScheduleExpiry(), weak_from_this());
    }
  }
  return absl::OkStatus();
}

void BatchQueue::CountDecoded(int64_t rows, absl::Duration busy) {
  metrics_.CountDecoded(rows, busy);
}

void BatchQueue::CountDecodeFailure() { metrics_.CountDecodeFailure(); }

absl::Time BatchQueue::ScheduleExpiry() {
  const absl::MutexLock lock(&mu_);
  if (batcher_.next_expiry() >= scheduled_expiry_) {
    return absl::InfiniteFuture();
  }
  scheduled_expiry_ = batcher_.next_expiry();
  return scheduled_expiry_;
}

absl::Time BatchQueue::Expire(absl::Time now) {
  std::vector<std::shared_ptr<InferenceRequest>> expired;
  {
    const absl::MutexLock lock(&mu_);
    const int64_t before = batcher_.rows();
    expired = batcher_.Expire(now);
    CountQueued(before);
    scheduled_expiry_ = absl::InfiniteFuture();  // the scheduled call is this one
  }
  FailExpired(expired);
  return ScheduleExpiry();
}

void BatchQueue::Remove(const InferenceRequest& request) {
  const absl::MutexLock lock(&mu_);
  const int64_t before = batcher_.rows();
  batcher_.Remove(request);
  CountQueued(before);
}

void BatchQueue::Complete(const InferenceRequest& request, InferenceRequest::Done done,
                          absl::StatusOr<InferenceResult> result) {
  const InferenceRequest::Schedule& schedule = request.schedule();
  const absl::Duration total = absl::Now() - schedule.arrival;
  const absl::Time started = request.started();
  const InferenceRequest::Place place = request.place();
  // Expired requests are marked as started when they leave the queue, but they did not run.
  if (started < absl::InfiniteFuture() && !absl::IsDeadlineExceeded(result.status())) {
    metrics_.RecordQueued(started - schedule.queue_start());
  }
  if (!result.ok()) {
    shared_->statistics.RecordFailure(total);
    done(std::move(result));  // errors are not ordered
    if (config_.preserve_ordering) {
      ordered_replies_[place.level].Skip(place.number);
    }
    return;
  }
  result->decoded = schedule.decoding;
  result->queued = started - schedule.queue_start();
  result->computed = total - result->queued - result->decoded;
  BatchDurations durations = result->durations;
  durations.copy_in += schedule.decoding;
  shared_->statistics.RecordSuccess(request.rows(), total, result->queued, durations);
  if (config_.preserve_ordering) {
    ordered_replies_[place.level].Provide(
        place.number, [done = std::move(done), result = std::move(result)]() mutable {
          done(std::move(result));
        });
  } else {
    done(std::move(result));
  }
}

WorkSource::Next BatchQueue::Take(const Worker& worker, absl::Time now) {
  TakenBatch taken;
  {
    const absl::MutexLock lock(&mu_);
    const int64_t before = batcher_.rows();
    taken.retried = !retry_queue_.empty();
    if (taken.retried) {
      taken.batch.rows = std::move(retry_queue_.front());
      retry_queue_.pop_front();
    } else {
      Batcher::Next next = batcher_.Take(now, Idle(worker));
      CountQueued(before);
      if (const auto* time = std::get_if<absl::Time>(&next)) {
        return *time;
      }
      taken.batch = std::get<Batcher::Batch>(std::move(next));
    }
    const int64_t rows = taken.retried ? CountOf(taken.batch.rows) : before - batcher_.rows();
    cost_.Begin(rows);
    taken.is_short = cost_.Predict(rows) <= kShortBatch;
    short_batches_ += taken.is_short ? 1 : 0;
    taken.workers_to_wake = WorkersWanted();
  }
  return Work([self = shared_from_this(), replica = ReplicaOf(worker),
               taken = std::move(taken)]() mutable { self->Run(replica, std::move(taken)); });
}

IdleWorkers BatchQueue::Idle(const Worker& asking) {
  IdleWorkers idle{1, cost_.min_chunk_rows(), cost_.NextMergeRows(), cost_.sample_rows()};
  for (const Worker* worker : replicas().workers()) {
    idle.count += worker != &asking && worker->free() ? 1 : 0;
  }
  return idle;
}

void BatchQueue::CountQueued(int64_t before) {
  if (batcher_.rows() != before) {
    metrics_.AddQueuedRows(batcher_.rows() - before);
  }
}

int64_t BatchQueue::WorkersWanted() const {
  return WorkersToWake(batcher_.rows(), cost_.min_chunk_rows(), short_batches_ > 0) +
         static_cast<int64_t>(retry_queue_.size());
}

void BatchQueue::WakeWorkers(int64_t count) {
  for (Worker* worker : replicas().workers()) {
    if (count <= 0) {
      return;
    }
    count -= worker->Wake() ? 1 : 0;
  }
}

bool BatchQueue::RunInline() {
  const auto& workers = replicas().workers();
  return std::any_of(workers.begin(), workers.end(),
                     [this](Worker* worker) { return worker->RunInline(*this); });
}

size_t BatchQueue::ReplicaOf(const Worker& worker) const {
  const auto& workers = replicas().workers();
  return static_cast<size_t>(std::find(workers.begin(), workers.end(), &worker) - workers.begin());
}

void BatchQueue::FailExpired(const std::vector<std::shared_ptr<InferenceRequest>>& expired) const {
  for (const auto& request : expired) {
    request->Fail(ExpiredError());
  }
}

absl::Status BatchQueue::ExpiredError() const {
  return absl::DeadlineExceededError(
      absl::StrCat("the request expired in the queue of model '", config_.name,
                   "' (its deadline or the queue's timeout passed)"));
}

void BatchQueue::Run(size_t replica, TakenBatch taken) {
  Worker& worker = replicas().worker(replica);
  // Workers cannot be woken in Take(): its caller holds a worker's lock.
  WakeWorkers(taken.workers_to_wake);
  const absl::Time start = absl::Now();
  Rows rows;
  const absl::Status status = RunBatch(
      replica,
      /*take=*/[&] { return absl::MakeConstSpan(rows = Start(worker, &taken)); },
      /*reply=*/[&](BatchResult result) { Reply(worker, rows, start, std::move(result)); });
  if (!status.ok()) {
    RetryInParts(rows, status);
  }
  if (taken.is_short) {
    EndShortBatch(worker);
  }
}

absl::Status BatchQueue::RunBatch(size_t replica, TakeBatch take, ReplyToBatch reply) const {
  const PackedWeights::Use packed(shared_->packed);
  return RunInference(config_, replicas().worker(replica), replicas().replica(replica), take,
                      reply);
}

BatchQueue::Rows BatchQueue::Start(Worker& worker, TakenBatch* taken) const {
  FailExpired(taken->batch.expired);
  if (taken->retried) {
    return DropEnded(std::move(taken->batch.rows));
  }
  absl::Time oldest = absl::InfiniteFuture();
  for (const RequestRows& rows : taken->batch.rows) {
    oldest = std::min(oldest, rows.request->schedule().queue_start());
  }
  if (!taken->batch.rows.empty()) {
    worker.RecordQueued(DeviceWork::kInference, absl::Now() - oldest);
  }
  return std::move(taken->batch.rows);
}

BatchQueue::Rows BatchQueue::DropEnded(Rows rows) const {
  std::erase_if(rows, [this](const RequestRows& part) {
    absl::Status error = part.request->error();
    if (error.ok() && part.request->schedule().deadline <= absl::Now()) {
      error = ExpiredError();
    }
    if (!error.ok()) {
      part.request->Fail(error);
    }
    return !error.ok();
  });
  return rows;
}

void BatchQueue::Reply(Worker& worker, const Rows& rows, absl::Time start, BatchResult result) {
  const int64_t count = CountOf(rows);
  shared_->statistics.RecordBatch(count, start, result.durations);
  metrics_.CountBatch(count);
  worker.CountChunk(DeviceWork::kInference, count);
  {
    const absl::MutexLock lock(&mu_);
    cost_.Record(count, result.durations.total());
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].request->Finish(rows[r].start, rows[r].count, std::move(result.outputs[r]),
                            worker.name(), version_, result.durations);
  }
}

void BatchQueue::RetryInParts(const Rows& rows, const absl::Status& error) {
  if (rows.size() == 1) {
    rows.front().request->Fail(error);
    return;
  }
  // The parts queue like other work, so that bad rows do not block the device for other models. If
  // the outputs cannot be cut by request, halves would fail too: retries each request alone.
  const size_t parts = absl::IsFailedPrecondition(error) ? rows.size() : 2;
  const auto start_of = [&](size_t part) {
    return rows.begin() + static_cast<std::ptrdiff_t>(rows.size() * part / parts);
  };
  int64_t wanted = 0;
  {
    const absl::MutexLock lock(&mu_);
    for (size_t part = 0; part < parts; ++part) {
      retry_queue_.emplace_back(start_of(part), start_of(part + 1));
    }
    wanted = WorkersWanted();
  }
  WakeWorkers(wanted - 1);  // the calling worker asks for work next
}

void BatchQueue::EndShortBatch(const Worker& worker) {
  int64_t wanted = 0;
  {
    const absl::MutexLock lock(&mu_);
    --short_batches_;
    wanted = WorkersWanted();
  }
  // The calling worker asks for work next, unless it may have other work.
  WakeWorkers(worker.has_other_work() ? wanted : wanted - 1);
}

}  // namespace braid

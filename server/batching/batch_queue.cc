#include "server/batching/batch_queue.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/batching/run_batch.h"
#include "server/devices/run_on.h"
#include "server/parallel/replica_bytes.h"

namespace braid {
namespace {

// Of a batch: a worker that is woken meanwhile has hardly begun before it is over.
constexpr absl::Duration kBrief = absl::Microseconds(200);

std::vector<int64_t> BytesOfAll(const ReplicaSet& replicas) {
  std::vector<int64_t> bytes;
  for (size_t r = 0; r < replicas.size(); ++r) {
    bytes.push_back(BytesOf(replicas.replica(r)));
  }
  return bytes;
}

}  // namespace

BatchQueue::BatchQueue(ModelConfig config, int64_t version, ReplicaSet replicas, Metrics* metrics,
                       ExpiryThread* expiries)
    : config_(std::move(config)),
      version_(version),
      replicas_(std::move(replicas)),
      bytes_(BytesOfAll(replicas_)),
      packed_(replicas_),
      expiries_(expiries),
      metrics_(metrics, config_.name),
      batcher_(config_) {
  if (config_.preserve_ordering) {
    ordered_answers_ = std::vector<OrderedAnswers>(batcher_.levels());
  }
}

absl::Status BatchQueue::Push(std::shared_ptr<InferenceRequest> request, Runner runner) {
  int64_t wanted = 0;
  bool here = false;
  std::vector<std::shared_ptr<InferenceRequest>> expired;
  bool expires = false;
  absl::Status added;
  {
    const absl::MutexLock lock(&mu_);
    const int64_t before = batcher_.rows();
    expired = batcher_.Expire(request->schedule().arrival);  // they take nobody's place any more
    const int64_t waiting = batcher_.rows();
    const absl::StatusOr<size_t> level = batcher_.Add(request);
    added = level.status();
    if (added.ok()) {
      const bool ordered = config_.preserve_ordering;
      request->Enter(shared_from_this(), {*level, ordered ? ordered_answers_[*level].Expect() : 0});
    }
    CountQueued(before);
    wanted = WorkersWanted();
    here = runner == Runner::kAnyThread && waiting == 0 && again_.empty() && brief_ == 0 &&
           cost_.Predict(batcher_.rows()) <= kBrief;
    expires = batcher_.next_expiry() < look_;
  }
  FailExpired(expired);
  BRAID_RETURN_IF_ERROR(added);
  if (!here || !RunHere()) {
    WakeWorkers(wanted);
    // Only now: of what ran here there is nothing left to expire.
    if (expires && expiries_ != nullptr) {
      expiries_->Add(NextLook(), weak_from_this());
    }
  }
  return absl::OkStatus();
}

absl::Time BatchQueue::NextLook() {
  const absl::MutexLock lock(&mu_);
  if (batcher_.next_expiry() >= look_) {
    return absl::InfiniteFuture();  // somebody looks before it
  }
  look_ = batcher_.next_expiry();
  return look_;
}

absl::Time BatchQueue::Expire(absl::Time now) {
  std::vector<std::shared_ptr<InferenceRequest>> expired;
  {
    const absl::MutexLock lock(&mu_);
    const int64_t before = batcher_.rows();
    expired = batcher_.Expire(now);
    CountQueued(before);
    look_ = absl::InfiniteFuture();  // this was it, whatever the clock says
  }
  FailExpired(expired);
  return NextLook();
}

void BatchQueue::Drop(const InferenceRequest& request) {
  const absl::MutexLock lock(&mu_);
  const int64_t before = batcher_.rows();
  batcher_.Remove(request);
  CountQueued(before);
}

void BatchQueue::Answer(const InferenceRequest& request, InferenceRequest::Done done,
                        absl::StatusOr<InferenceResult> result) {
  const absl::Time arrival = request.schedule().arrival;
  const absl::Duration total = absl::Now() - arrival;
  const absl::Time begun = request.begun();
  const InferenceRequest::Place place = request.place();
  // One that expired was taken out of the queue, but not to be run.
  if (begun < absl::InfiniteFuture() && !absl::IsDeadlineExceeded(result.status())) {
    metrics_.RecordQueued(begun - arrival);
  }
  if (!result.ok()) {
    statistics_.RecordFailure(total);
    // An error has no rows to keep in order.
    done(std::move(result));
    if (config_.preserve_ordering) {
      ordered_answers_[place.level].Forget(place.number);
    }
    return;
  }
  result->queued = begun - arrival;
  result->computed = total - result->queued;
  statistics_.RecordSuccess(request.rows(), total, result->queued, result->durations);
  if (config_.preserve_ordering) {
    ordered_answers_[place.level].Bring(
        place.number, [done = std::move(done), result = std::move(result)]() mutable {
          done(std::move(result));
        });
  } else {
    done(std::move(result));
  }
}

WorkSource::Next BatchQueue::Take(const Worker& worker, absl::Time now) {
  Batcher::Next next;
  bool brief = false;
  bool again = false;
  int64_t wanted = 0;
  {
    const absl::MutexLock lock(&mu_);
    const int64_t before = batcher_.rows();
    int64_t rows = 0;
    if (!again_.empty()) {
      again = true;
      Batcher::Batch part{std::move(again_.front()), {}};
      again_.pop_front();
      for (const Batcher::Piece& piece : part.pieces) {
        rows += piece.rows;
      }
      next = std::move(part);
    } else {
      next = batcher_.Take(now, Idle(worker));
      rows = before - batcher_.rows();
    }
    CountQueued(before);
    if (std::holds_alternative<Batcher::Batch>(next)) {
      cost_.Begin(rows);
      brief = cost_.Predict(rows) <= kBrief;
      brief_ += brief ? 1 : 0;
      wanted = WorkersWanted();
    }
  }
  if (const auto* time = std::get_if<absl::Time>(&next)) {
    return *time;
  }
  // What is left is for the other workers, who are woken from the work: here the caller holds its
  // lock.
  return Work([self = shared_from_this(), replica = ReplicaOf(worker), wanted, brief, again,
               batch = std::get<Batcher::Batch>(std::move(next))] {
    self->WakeWorkers(wanted);
    if (again) {
      self->RunOrDivide(replica, self->StillWanted(batch.pieces));
    } else {
      self->Run(replica, batch);
    }
    if (brief) {
      self->EndBrief(replica);
    }
  });
}

IdleWorkers BatchQueue::Idle(const Worker& asking) {
  IdleWorkers idle{1, cost_.min_chunk_rows(), cost_.merge_rows(), cost_.try_rows()};
  for (const Worker* worker : replicas_.workers()) {
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
  return braid::WorkersWanted(batcher_.rows(), cost_.min_chunk_rows(), brief_ > 0) +
         static_cast<int64_t>(again_.size());
}

void BatchQueue::WakeWorkers(int64_t wanted) {
  for (Worker* worker : replicas_.workers()) {
    if (wanted <= 0) {
      return;
    }
    wanted -= worker->Wake() ? 1 : 0;
  }
}

bool BatchQueue::RunHere() {
  const auto& workers = replicas_.workers();
  return std::any_of(workers.begin(), workers.end(),
                     [this](Worker* worker) { return worker->RunHere(*this); });
}

size_t BatchQueue::ReplicaOf(const Worker& worker) const {
  const auto& workers = replicas_.workers();
  return static_cast<size_t>(std::find(workers.begin(), workers.end(), &worker) - workers.begin());
}

void BatchQueue::FailExpired(const std::vector<std::shared_ptr<InferenceRequest>>& expired) const {
  for (const auto& request : expired) {
    request->Fail(Expired());
  }
}

absl::Status BatchQueue::Expired() const {
  return absl::DeadlineExceededError(
      absl::StrCat("the request waited for model '", config_.name,
                   "' until its deadline, or for as long as it may"));
}

BatchQueue::Pieces BatchQueue::StillWanted(const Pieces& part) const {
  Pieces wanted;
  for (const Batcher::Piece& piece : part) {
    if (const absl::Status error = piece.request->error(); !error.ok()) {
      piece.request->Fail(error);
    } else if (piece.request->schedule().deadline <= absl::Now()) {
      piece.request->Fail(Expired());
    } else {
      wanted.push_back(piece);
    }
  }
  return wanted;
}

void BatchQueue::Run(size_t replica, const Batcher::Batch& batch) {
  FailExpired(batch.expired);
  if (batch.pieces.empty()) {
    return;
  }
  absl::Time oldest = absl::InfiniteFuture();
  for (const Batcher::Piece& piece : batch.pieces) {
    oldest = std::min(oldest, piece.request->schedule().arrival);
  }
  replicas_.worker(replica).RecordQueued(DeviceWork::kInference, absl::Now() - oldest);
  RunOrDivide(replica, batch.pieces);
}

void BatchQueue::RunOrDivide(size_t replica, const Pieces& pieces) {
  if (pieces.empty()) {
    return;
  }
  const absl::Status together = RunPieces(replica, pieces);
  if (together.ok()) {
    return;
  }
  if (pieces.size() == 1) {
    pieces.front().request->Fail(together);
    return;
  }
  // Each part takes its turn, as other models do: whoever sends bad rows holds no device up. Of
  // what the model returns for several requests and cannot be cut, halves will not be any better.
  const size_t parts = absl::IsFailedPrecondition(together) ? pieces.size() : 2;
  const auto start_of = [&](size_t part) {
    return pieces.begin() + static_cast<std::ptrdiff_t>(pieces.size() * part / parts);
  };
  int64_t wanted = 0;
  {
    const absl::MutexLock lock(&mu_);
    for (size_t part = 0; part < parts; ++part) {
      again_.emplace_back(start_of(part), start_of(part + 1));
    }
    wanted = WorkersWanted();
  }
  WakeWorkers(wanted - 1);  // this one will ask by itself
}

void BatchQueue::EndBrief(size_t replica) {
  int64_t wanted = 0;
  {
    const absl::MutexLock lock(&mu_);
    --brief_;
    wanted = WorkersWanted();
  }
  // One of those that are wanted is this worker, unless it has something else to do first.
  const bool elsewhere = replicas_.worker(replica).has_other_work();
  WakeWorkers(elsewhere ? wanted : wanted - 1);
}

absl::Status BatchQueue::RunPieces(size_t replica, const Pieces& pieces) {
  Worker& worker = replicas_.worker(replica);
  const absl::Time start = absl::Now();
  std::vector<BatchPart> parts;
  parts.reserve(pieces.size());
  int64_t rows = 0;
  for (const Batcher::Piece& piece : pieces) {
    parts.push_back({&piece.request->inputs(), piece.start, piece.rows});
    rows += piece.rows;
  }
  const PackedWeights::Use packed(packed_);
  BRAID_ASSIGN_OR_RETURN(BatchResult result,
                         RunBatch(config_, worker, replicas_.replica(replica), parts));
  const BatchDurations& durations = result.durations;
  statistics_.RecordBatch(rows, start, durations);
  metrics_.CountBatch(rows);
  worker.CountChunk(DeviceWork::kInference, rows);
  {
    const absl::MutexLock lock(&mu_);
    cost_.Record(rows, durations.copy_in + durations.forward + durations.copy_out);
  }
  for (size_t p = 0; p < pieces.size(); ++p) {
    pieces[p].request->Finish(pieces[p].start, pieces[p].rows, std::move(result.outputs[p]),
                              worker.name(), version_, durations);
  }
  return absl::OkStatus();
}

}  // namespace braid

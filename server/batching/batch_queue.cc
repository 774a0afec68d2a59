#include "server/batching/batch_queue.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/batching/run_batch.h"
#include "server/devices/run_on.h"

namespace braid {

BatchQueue::BatchQueue(ModelConfig config, int64_t version, ReplicaSet replicas, Metrics* metrics)
    : config_(std::move(config)),
      version_(version),
      limits_{std::max<int64_t>(config_.max_batch_size, 1),
              config_.batched() ? config_.max_queue_delay : absl::ZeroDuration()},
      replicas_(std::move(replicas)),
      metrics_(metrics) {}

absl::Status BatchQueue::Push(std::shared_ptr<InferenceRequest> request) {
  const int64_t rows = request->rows();
  request->KeepAlive(shared_from_this());
  metrics_->AddQueuedRows(config_.name, rows);
  {
    const absl::MutexLock lock(&mu_);
    queued_rows_ += rows;
    queue_.push_back({std::move(request), 0, rows});
  }
  WakeWorkers(rows);
  return absl::OkStatus();
}

WorkSource::Next BatchQueue::Take(const Worker& worker, absl::Time now) {
  Batch batch;
  int64_t left = 0;
  {
    const absl::MutexLock lock(&mu_);
    DropDead(now, &batch);
    if (!queue_.empty()) {
      const BatchDecision decision = DecideBatch(
          {queued_rows_, queue_.front().request->schedule().arrival, FreeWorkers(worker)}, now,
          limits_);
      if (const auto* take = std::get_if<TakeRows>(&decision)) {
        Cut(take->rows, now, &batch);
      } else if (batch.expired.empty()) {
        return std::get<WaitUntil>(decision).time;
      }
    }
    left = queued_rows_;
  }
  if (batch.pieces.empty() && batch.expired.empty()) {
    return absl::InfiniteFuture();
  }
  // What is left is for the other workers, who are woken from the work: here the caller holds its
  // lock.
  return Work([self = shared_from_this(), replica = ReplicaOf(worker), left,
               batch = std::move(batch)]() mutable {
    self->WakeWorkers(left);
    self->Run(replica, batch);
  });
}

void BatchQueue::Cut(int64_t rows, absl::Time now, Batch* batch) {
  const std::shared_ptr<InferenceRequest> head = queue_.front().request;
  int64_t cut = 0;
  while (cut < rows && !queue_.empty() && queue_.front().request->SharesBatchWith(*head)) {
    Piece& next = queue_.front();
    const int64_t take = std::min(rows - cut, next.rows);
    if (!next.request->Begin()) {
      DropHead();
      continue;
    }
    batch->pieces.push_back({next.request, next.start, take});
    queued_rows_ -= take;
    metrics_->AddQueuedRows(config_.name, -take);
    cut += take;
    next.start += take;
    next.rows -= take;
    if (next.rows == 0) {
      queue_.pop_front();
      DropDead(now, batch);
    }
  }
}

void BatchQueue::DropDead(absl::Time now, Batch* batch) {
  while (!queue_.empty()) {
    Piece& head = queue_.front();
    const bool expired = head.request->schedule().deadline <= now;
    if (!expired && !head.request->failed()) {
      return;
    }
    if (expired && head.request->Begin()) {
      batch->expired.push_back(head.request);
    }
    DropHead();
  }
}

void BatchQueue::DropHead() {
  const int64_t rows = queue_.front().rows;
  queued_rows_ -= rows;
  metrics_->AddQueuedRows(config_.name, -rows);
  queue_.pop_front();
}

int64_t BatchQueue::FreeWorkers(const Worker& asking) const {
  int64_t free = 1;
  for (const Worker* worker : replicas_.workers()) {
    free += worker != &asking && worker->free() ? 1 : 0;
  }
  return free;
}

void BatchQueue::WakeWorkers(int64_t rows) {
  int64_t wanted = (rows + kMinChunkRows - 1) / kMinChunkRows;
  for (Worker* worker : replicas_.workers()) {
    if (wanted == 0) {
      return;
    }
    wanted -= worker->Wake() ? 1 : 0;
  }
}

size_t BatchQueue::ReplicaOf(const Worker& worker) const {
  const auto& workers = replicas_.workers();
  return static_cast<size_t>(std::find(workers.begin(), workers.end(), &worker) - workers.begin());
}

void BatchQueue::Run(size_t replica, const Batch& batch) const {
  for (const auto& request : batch.expired) {
    request->Fail(absl::DeadlineExceededError(absl::StrCat(
        "the deadline passed while the request waited for model '", config_.name, "'")));
  }
  if (batch.pieces.empty()) {
    return;
  }
  const absl::Status together = RunPieces(replica, batch.pieces);
  if (together.ok()) {
    return;
  }
  if (batch.pieces.size() == 1) {
    batch.pieces.front().request->Fail(together);
    return;
  }
  for (const Piece& piece : batch.pieces) {
    if (const absl::Status status = RunPieces(replica, {piece}); !status.ok()) {
      piece.request->Fail(status);
    }
  }
}

absl::Status BatchQueue::RunPieces(size_t replica, const std::vector<Piece>& pieces) const {
  Worker& worker = replicas_.worker(replica);
  std::vector<BatchPart> parts;
  parts.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    parts.push_back({&piece.request->inputs(), piece.start, piece.rows});
  }
  absl::StatusOr<std::vector<std::vector<HostTensor>>> outputs =
      RunBatch(config_, worker, replicas_.replica(replica), parts);
  if (!outputs.ok()) {
    return outputs.status();
  }
  int64_t rows = 0;
  for (size_t p = 0; p < pieces.size(); ++p) {
    rows += pieces[p].rows;
    pieces[p].request->Finish(pieces[p].start, pieces[p].rows, std::move((*outputs)[p]),
                              worker.name(), version_);
  }
  metrics_->CountBatch(config_.name, rows);
  worker.AddSamples(rows);
  return absl::OkStatus();
}

}  // namespace braid

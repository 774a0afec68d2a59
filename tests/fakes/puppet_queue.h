// A queue whose replicas are puppets on real workers.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/batching/batch_queue.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/pending.h"
#include "tests/fakes/puppet_replica.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {

// Model "m": x FP32 [B, any] to y FP32 [B, any], in batches of up to `max_batch_size`.
inline ModelConfig PuppetConfig(int64_t max_batch_size) {
  return MakeConfig(max_batch_size, {{"x", DataType::kFp32, {-1}}}, {{"y", DataType::kFp32, {-1}}});
}

// One puppet per worker.
inline std::vector<std::unique_ptr<Replica>> Puppets(const WorkerFleet& fleet,
                                                     const PuppetReplica::Function& forward) {
  std::vector<std::unique_ptr<Replica>> replicas;
  for (size_t w = 0; w < fleet.workers().size(); ++w) {
    replicas.push_back(std::make_unique<PuppetReplica>(forward));
  }
  return replicas;
}

// A queue that the workers of `fleet` take batches from.
inline std::shared_ptr<BatchQueue> MakeQueue(WorkerFleet* fleet, ModelConfig config,
                                             const PuppetReplica::Function& forward) {
  auto queue = std::make_shared<BatchQueue>(std::move(config), /*version=*/1,
                                            ReplicaSet(fleet->workers(), Puppets(*fleet, forward)),
                                            fleet->metrics());
  for (Worker* worker : fleet->workers()) {
    worker->AddSource(queue);
  }
  return queue;
}

using PendingInference = Pending<absl::StatusOr<InferenceResult>>;

// A request for all rows of `input`, answered to `pending`. One to a model that is not batched
// counts as one row.
inline std::shared_ptr<InferenceRequest> MakeRequest(const HostTensor& input,
                                                     PendingInference* pending,
                                                     absl::Time deadline = absl::InfiniteFuture(),
                                                     bool batched = true) {
  InferenceRequest::Schedule schedule;
  schedule.arrival = absl::UnixEpoch();
  schedule.deadline = deadline;
  return std::make_shared<InferenceRequest>(std::vector<HostTensor>{input},
                                            batched ? input.rows() : 1, schedule, pending->done());
}

}  // namespace braid

#include "server/rpc/inference/statistics_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/batching/model_statistics.h"

namespace braid {
namespace {

void Set(const DurationCount& from, inference::StatisticDuration* to) {
  to->set_count(static_cast<uint64_t>(from.count));
  to->set_ns(static_cast<uint64_t>(std::max<int64_t>(absl::ToInt64Nanoseconds(from.total), 0)));
}

}  // namespace

void FillStatistics(const RequestQueue& queue, inference::ModelStatistics* message) {
  const braid::ModelStatistics::Counts counts = queue.statistics().counts();
  message->set_name(queue.config().name);
  message->set_version(absl::StrCat(queue.version()));
  if (counts.last_inference != absl::InfinitePast()) {
    message->set_last_inference(static_cast<uint64_t>(absl::ToUnixMillis(counts.last_inference)));
  }
  message->set_inference_count(static_cast<uint64_t>(counts.rows));
  message->set_execution_count(static_cast<uint64_t>(counts.batches));
  auto* requests = message->mutable_inference_stats();
  Set(counts.success, requests->mutable_success());
  Set(counts.failure, requests->mutable_fail());
  Set(counts.queue, requests->mutable_queue());
  Set(counts.request.copy_in, requests->mutable_compute_input());
  Set(counts.request.forward, requests->mutable_compute_infer());
  Set(counts.request.copy_out, requests->mutable_compute_output());
  requests->mutable_cache_hit();
  requests->mutable_cache_miss();
  for (const auto& [rows, batches] : counts.by_rows) {
    auto* same_rows = message->add_batch_stats();
    same_rows->set_batch_size(static_cast<uint64_t>(rows));
    Set(batches.copy_in, same_rows->mutable_compute_input());
    Set(batches.forward, same_rows->mutable_compute_infer());
    Set(batches.copy_out, same_rows->mutable_compute_output());
  }
}

}  // namespace braid

#include "server/batching/batcher.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {

Batcher::Batcher(const ModelConfig& config)
    : limits_{config.merges_requests() ? config.max_batch_size : 1,
              config.merges_requests() ? config.max_queue_delay : absl::ZeroDuration(),
              config.preferred_batch_sizes, config.preferred_chunk_rows},
      default_priority_(std::max<int64_t>(config.default_priority_level, 1)),
      levels_(static_cast<size_t>(std::max<int64_t>(config.priority_levels, 1))) {
  for (size_t l = 0; l < levels_.size(); ++l) {
    const auto own = config.priority_queue_policies.find(static_cast<int64_t>(l) + 1);
    levels_[l].policy =
        own != config.priority_queue_policies.end() ? own->second : config.default_queue_policy;
  }
}

size_t Batcher::LevelOf(const InferenceRequest& request) const {
  // Like Triton, treats priorities that the model does not have as the default.
  const int64_t priority = request.schedule().priority;
  const bool known = priority >= 1 && priority <= static_cast<int64_t>(levels_.size());
  return static_cast<size_t>((known ? priority : default_priority_) - 1);
}

absl::StatusOr<size_t> Batcher::Add(std::shared_ptr<InferenceRequest> request) {
  const size_t l = LevelOf(*request);
  PriorityLevel& level = levels_[l];
  const auto waiting = static_cast<int64_t>(level.queue.size() + level.delayed.size());
  if (level.policy.max_queue_size > 0 && waiting >= level.policy.max_queue_size) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model's queue is full: ", waiting, " requests (max_queue_size)"));
  }
  const InferenceRequest* const key = request.get();
  const int64_t rows = request->rows();
  rows_ += rows;
  level.queue.push_back({.rest = {std::move(request), 0, rows}, .level = l});
  const auto entry = std::prev(level.queue.end());
  entries_[key] = entry;
  SetTimer(entry);
  return l;
}

void Batcher::Remove(const InferenceRequest& request) {
  if (const auto found = entries_.find(&request); found != entries_.end()) {
    Erase(found->second);
  }
}

Batcher::Next Batcher::Take(absl::Time now, const IdleWorkers& idle) {
  Batch batch{{}, Expire(now)};
  absl::Time until = absl::InfiniteFuture();
  if (rows_ > 0) {
    const BatchDecision decision = DecideBatch(View(idle), now, limits_);
    if (const auto* take = std::get_if<TakeRows>(&decision)) {
      // A configuration with delays or preferred sizes always merges, even beyond merge_rows.
      const bool always_merges =
          limits_.max_delay > absl::ZeroDuration() || !limits_.preferred_rows.empty();
      const int64_t half = (take->rows + 1) / 2;
      const int64_t before = rows_;
      const int64_t released = before >= limits_.max_rows ? limits_.max_rows : released_rows_;
      Fill(always_merges ? Share{take->rows, take->rows, half, limits_.max_rows}
                         : Share{take->rows, idle.merge_rows, half, take->rows},
           now, &batch);
      released_rows_ = std::clamp<int64_t>(released - (before - rows_), 0, rows_);
    } else {
      until = std::get<WaitUntil>(decision).time;
    }
  }
  if (!batch.rows.empty() || !batch.expired.empty()) {
    return batch;
  }
  return std::min(until, next_expiry());
}

absl::Time Batcher::TimeoutOf(const Entry& entry) const {
  if (entry.delayed || entry.rest.start > 0) {
    return absl::InfiniteFuture();
  }
  const QueuePolicy& policy = levels_[entry.level].policy;
  const InferenceRequest::Schedule& schedule = entry.rest.request->schedule();
  absl::Duration timeout = policy.default_timeout;
  if (policy.allow_timeout_override && schedule.timeout > absl::ZeroDuration() &&
      (timeout == absl::ZeroDuration() || schedule.timeout < timeout)) {
    timeout = schedule.timeout;
  }
  return timeout > absl::ZeroDuration() ? schedule.arrival + timeout : absl::InfiniteFuture();
}

void Batcher::SetTimer(Fifo::iterator entry) {
  entry->timer = std::min(entry->rest.request->schedule().deadline, TimeoutOf(*entry));
  if (entry->timer < absl::InfiniteFuture()) {
    timers_.emplace(entry->timer, entry->rest.request.get());
  }
}

void Batcher::ClearTimer(Fifo::iterator entry) {
  if (entry->timer < absl::InfiniteFuture()) {
    timers_.erase({entry->timer, entry->rest.request.get()});
  }
}

Batcher::Fifo& Batcher::FifoOf(Fifo::iterator entry) {
  PriorityLevel& level = levels_[entry->level];
  return entry->delayed ? level.delayed : level.queue;
}

void Batcher::Erase(Fifo::iterator entry) {
  rows_ -= entry->rest.count;
  started_ -= entry->rest.start > 0 ? 1 : 0;
  ClearTimer(entry);
  entries_.erase(entry->rest.request.get());
  FifoOf(entry).erase(entry);
  released_rows_ = std::min(released_rows_, rows_);
}

std::vector<std::shared_ptr<InferenceRequest>> Batcher::Expire(absl::Time now) {
  std::vector<std::shared_ptr<InferenceRequest>> expired;
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const Fifo::iterator entry = entries_.find(timers_.begin()->second)->second;
    PriorityLevel& level = levels_[entry->level];
    const std::shared_ptr<InferenceRequest>& request = entry->rest.request;
    if (request->schedule().deadline > now &&
        level.policy.timeout_action == QueuePolicy::TimeoutAction::kDelay) {
      ClearTimer(entry);
      level.delayed.splice(level.delayed.end(), level.queue, entry);
      entry->delayed = true;
      SetTimer(entry);
      continue;
    }
    if (request->TryStart(now)) {
      expired.push_back(request);
    }
    Erase(entry);
  }
  return expired;
}

QueueView Batcher::View(const IdleWorkers& idle) const {
  QueueView view{rows_, absl::InfiniteFuture(), 0, idle};
  for (const PriorityLevel& level : levels_) {
    for (const Fifo* fifo : {&level.queue, &level.delayed}) {
      if (fifo->empty()) {
        continue;
      }
      const RequestRows& head = fifo->front().rest;
      view.head_rows = view.head_rows > 0 ? view.head_rows : head.count;
      view.oldest = std::min(view.oldest, head.request->schedule().queue_start());
    }
  }
  if (started_ > 0 || released_rows_ > 0) {
    view.oldest = absl::InfinitePast();  // the rest of a request or of a full batch does not wait
  }
  return view;
}

void Batcher::Fill(const Share& share, absl::Time now, Batch* batch) {
  int64_t left = share.max_rows;
  for (PriorityLevel& level : levels_) {
    for (Fifo* fifo : {&level.queue, &level.delayed}) {
      while (!fifo->empty()) {
        const Fifo::iterator next = fifo->begin();
        RequestRows& rest = next->rest;
        if (!batch->rows.empty() && !rest.request->SharesBatchWith(*batch->rows.front().request)) {
          return;
        }
        const int64_t taken = share.max_rows - left;
        if (taken >= share.min_rows && rest.count > left && rest.count <= share.whole_rows) {
          return;
        }
        if (!rest.request->TryStart(now)) {
          Erase(next);
          continue;
        }
        const int64_t take = std::min(left, rest.count);
        batch->rows.push_back({rest.request, rest.start, take});
        left -= take;
        if (take == rest.count) {
          Erase(next);
        } else {
          ClearTimer(next);
          started_ += rest.start == 0 ? 1 : 0;
          rows_ -= take;
          rest.start += take;
          rest.count -= take;
          SetTimer(next);
          fifo->splice(fifo->end(), *fifo, next);
        }
        if (left == 0 || share.max_rows - left >= share.merge_rows) {
          return;
        }
      }
    }
  }
}

}  // namespace braid

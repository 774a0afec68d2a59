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
  // As in Triton, a client that always sends one is served by models that have none of it.
  const int64_t priority = request.schedule().priority;
  const bool own = priority >= 1 && priority <= static_cast<int64_t>(levels_.size());
  return static_cast<size_t>((own ? priority : default_priority_) - 1);
}

absl::StatusOr<size_t> Batcher::Add(std::shared_ptr<InferenceRequest> request) {
  const size_t l = LevelOf(*request);
  Level& level = levels_[l];
  const auto waiting = static_cast<int64_t>(level.line.size() + level.delayed.size());
  if (level.policy.max_queue_size > 0 && waiting >= level.policy.max_queue_size) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting, " requests wait, the model's limit (max_queue_size)"));
  }
  const InferenceRequest* const key = request.get();
  rows_ += request->rows();
  Waiting entry;
  entry.rows = request->rows();
  entry.level = l;
  entry.request = std::move(request);
  level.line.push_back(std::move(entry));
  const auto place = std::prev(level.line.end());
  places_[key] = place;
  SetAlarm(place);
  return l;
}

void Batcher::Remove(const InferenceRequest& request) {
  if (const auto found = places_.find(&request); found != places_.end()) {
    Forget(found->second);
  }
}

Batcher::Next Batcher::Take(absl::Time now, const IdleWorkers& idle) {
  Batch batch{{}, Expire(now)};
  absl::Time until = absl::InfiniteFuture();
  if (rows_ > 0) {
    const BatchDecision decision = DecideBatch(View(idle), now, limits_);
    if (const auto* take = std::get_if<TakeRows>(&decision)) {
      // Whoever asks for delays or sizes wants requests merged, whatever it gains.
      const bool as_told =
          limits_.max_delay > absl::ZeroDuration() || !limits_.preferred_rows.empty();
      const int64_t half = (take->rows + 1) / 2;
      const int64_t before = rows_;
      const int64_t due = before >= limits_.max_rows ? limits_.max_rows : released_;
      Cut(as_told ? Share{take->rows, take->rows, half, limits_.max_rows}
                  : Share{take->rows, idle.merge_rows, half, take->rows},
          now, &batch);
      released_ = std::clamp<int64_t>(due - (before - rows_), 0, rows_);
    } else {
      until = std::get<WaitUntil>(decision).time;
    }
  }
  if (!batch.pieces.empty() || !batch.expired.empty()) {
    return batch;
  }
  return std::min(until, next_expiry());
}

absl::Time Batcher::GiveUpTime(const Waiting& waiting) const {
  if (waiting.delayed || waiting.start > 0) {
    return absl::InfiniteFuture();
  }
  const QueuePolicy& policy = levels_[waiting.level].policy;
  const InferenceRequest::Schedule& schedule = waiting.request->schedule();
  absl::Duration timeout = policy.default_timeout;
  if (policy.allow_timeout_override && schedule.timeout > absl::ZeroDuration() &&
      (timeout == absl::ZeroDuration() || schedule.timeout < timeout)) {
    timeout = schedule.timeout;
  }
  return timeout > absl::ZeroDuration() ? schedule.arrival + timeout : absl::InfiniteFuture();
}

void Batcher::SetAlarm(Line::iterator waiting) {
  waiting->alarm = std::min(waiting->request->schedule().deadline, GiveUpTime(*waiting));
  if (waiting->alarm < absl::InfiniteFuture()) {
    alarms_.emplace(waiting->alarm, waiting->request.get());
  }
}

void Batcher::ClearAlarm(Line::iterator waiting) {
  if (waiting->alarm < absl::InfiniteFuture()) {
    alarms_.erase({waiting->alarm, waiting->request.get()});
  }
}

Batcher::Line& Batcher::LineOf(Line::iterator waiting) {
  Level& level = levels_[waiting->level];
  return waiting->delayed ? level.delayed : level.line;
}

void Batcher::Forget(Line::iterator waiting) {
  rows_ -= waiting->rows;
  begun_ -= waiting->start > 0 ? 1 : 0;
  ClearAlarm(waiting);
  places_.erase(waiting->request.get());
  LineOf(waiting).erase(waiting);
  released_ = std::min(released_, rows_);
}

std::vector<std::shared_ptr<InferenceRequest>> Batcher::Expire(absl::Time now) {
  std::vector<std::shared_ptr<InferenceRequest>> expired;
  while (!alarms_.empty() && alarms_.begin()->first <= now) {
    const Line::iterator waiting = places_.find(alarms_.begin()->second)->second;
    Level& level = levels_[waiting->level];
    if (waiting->request->schedule().deadline > now &&
        level.policy.timeout_action == QueuePolicy::TimeoutAction::kDelay) {
      ClearAlarm(waiting);
      level.delayed.splice(level.delayed.end(), level.line, waiting);
      waiting->delayed = true;
      SetAlarm(waiting);
      continue;
    }
    if (waiting->request->Begin(now)) {
      expired.push_back(waiting->request);
    }
    Forget(waiting);
  }
  return expired;
}

QueueView Batcher::View(const IdleWorkers& idle) const {
  QueueView view{rows_, absl::InfiniteFuture(), 0, idle};
  for (const Level& level : levels_) {
    for (const Line* line : {&level.line, &level.delayed}) {
      if (line->empty()) {
        continue;
      }
      view.head_rows = view.head_rows > 0 ? view.head_rows : line->front().rows;
      view.oldest = std::min(view.oldest, line->front().request->schedule().arrival);
    }
  }
  if (begun_ > 0 || released_ > 0) {
    view.oldest = absl::InfinitePast();  // the rest of a request, or batch, has waited enough
  }
  return view;
}

void Batcher::Cut(const Share& share, absl::Time now, Batch* batch) {
  int64_t left = share.rows;
  for (Level& level : levels_) {
    for (Line* line : {&level.line, &level.delayed}) {
      while (!line->empty()) {
        const Line::iterator next = line->begin();
        if (!batch->pieces.empty() &&
            !next->request->SharesBatchWith(*batch->pieces.front().request)) {
          return;
        }
        const int64_t taken = share.rows - left;
        if (taken >= share.enough && next->rows > left && next->rows <= share.whole) {
          return;
        }
        if (!next->request->Begin(now)) {
          Forget(next);
          continue;
        }
        const int64_t take = std::min(left, next->rows);
        batch->pieces.push_back({next->request, next->start, take});
        left -= take;
        if (take == next->rows) {
          Forget(next);
        } else {
          ClearAlarm(next);
          begun_ += next->start == 0 ? 1 : 0;
          rows_ -= take;
          next->start += take;
          next->rows -= take;
          SetAlarm(next);
          line->splice(line->end(), *line, next);
        }
        if (left == 0 || share.rows - left >= share.merge_rows) {
          return;
        }
      }
    }
  }
}

}  // namespace braid

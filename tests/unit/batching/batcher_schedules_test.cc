// Invariants over 100,000 random schedules with simulated time. No request is lost, completed
// twice, run twice, run after its deadline, or delayed by more than one chunk of each request
// before it. With preserve_ordering, replies keep their order.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/batching/batcher.h"
#include "server/batching/ordered_replies.h"

namespace braid {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

// One schedule: requests arrive, are cancelled and expire, and workers run batches for random
// times.
class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    config_.max_batch_size = Pick(1, 8);
    config_.max_queue_delay = absl::Milliseconds(Pick(0, 1) * Pick(0, 10));
    config_.preserve_ordering = Pick(0, 1) == 1;
    config_.priority_levels = Pick(0, 3);
    config_.default_priority_level =
        config_.priority_levels > 0 ? Pick(1, config_.priority_levels) : 0;
    config_.preferred_chunk_rows = Pick(0, 1) * Pick(1, 8);
    for (int64_t size = 1; size <= config_.max_batch_size; ++size) {
      if (Pick(0, 5) == 0) {
        config_.preferred_batch_sizes.push_back(size);
      }
    }
    QueuePolicy& policy = config_.default_queue_policy;
    policy.default_timeout = absl::Milliseconds(Pick(0, 1) * Pick(1, 30));
    policy.allow_timeout_override = Pick(0, 1) == 1;
    policy.max_queue_size = Pick(0, 1) * Pick(1, 6);
    if (Pick(0, 1) == 1) {
      policy.timeout_action = QueuePolicy::TimeoutAction::kDelay;
    }
    batcher_.emplace(config_);
    ordered_ = std::vector<OrderedReplies>(batcher_->levels());
    idle_workers_ = Pick(1, 3);
  }

  void Run() {
    absl::Time time = kStart;
    const int64_t requests = Pick(1, 12);
    for (int64_t r = 0; r < requests; ++r) {
      time += absl::Milliseconds(Pick(0, 1) * Pick(0, 10));
      At(time, [this] { Arrive(); });
    }
    while (!events_.empty()) {
      now_ = events_.begin()->first;
      const auto event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
      AskForWork();
    }
    EXPECT_EQ(batcher_->rows(), 0);
    EXPECT_EQ(answers_, accepted_);
  }

 private:
  using Event = std::function<void()>;

  // The expected state of a request.
  struct Known {
    std::shared_ptr<InferenceRequest> request;
    size_t level = 0;
    int64_t number = 0;
    OrderedReplies::Slot place = 0;
    int64_t taken = 0;  // rows, from the first on
    bool answered = false;
    bool cancelled = false;
    bool dropped = false;
    // Chunks of other requests of its priority that may still run before its first.
    int64_t patience = 0;
  };

  // Stands in for BatchQueue on one thread.
  class Queue final : public InferenceRequest::Queue {
   public:
    explicit Queue(Simulation* simulation) : simulation_(simulation) {}
    void Remove(const InferenceRequest& request) override {
      simulation_->Of(request).dropped = true;
      simulation_->batcher_->Remove(request);
    }
    void Complete(const InferenceRequest& request, InferenceRequest::Done done,
                  absl::StatusOr<InferenceResult> result) override {
      simulation_->Answer(request, std::move(done), std::move(result));
    }

   private:
    Simulation* const simulation_;
  };

  int64_t Pick(int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random_() % static_cast<uint64_t>(to - from + 1));
  }
  void At(absl::Time time, Event event) { events_.emplace(time, std::move(event)); }

  void Arrive() {
    const int64_t columns = Pick(1, 4) == 1 ? 2 : 1;  // these do not share batches with the others
    const int64_t rows = Pick(0, 2) == 0 ? Pick(1, 30) : Pick(1, 4);
    InferenceRequest::Schedule schedule;
    schedule.arrival = now_;
    if (Pick(0, 2) == 0) {
      schedule.deadline = now_ + absl::Milliseconds(Pick(0, 40));
    }
    schedule.priority = Pick(0, std::max<int64_t>(config_.priority_levels, 1));
    schedule.timeout = absl::Milliseconds(Pick(0, 1) * Pick(1, 20));
    const size_t index = known_.size();
    const auto request = std::make_shared<InferenceRequest>(
        std::vector<HostTensor>{{"x", DataType::kFp32, {rows, columns}, nullptr, 0, nullptr}}, rows,
        schedule, [this, index](const absl::StatusOr<InferenceResult>& result) {
          CheckAnswer(index, result);
        });
    const absl::StatusOr<size_t> level = batcher_->Add(request);
    if (!level.ok()) {
      EXPECT_EQ(level.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_GE(Waiting(), config_.default_queue_policy.max_queue_size);
      return;
    }
    Known known;
    known.request = request;
    known.level = *level;
    known.number = accepted_++;
    known.place = ordered_[*level].Reserve();
    for (const Known& other : known_) {
      known.patience += other.level == *level && !Over(other) ? 1 : 0;
    }
    request->EnterQueue(queue_, {*level, static_cast<int64_t>(index)});
    known_.push_back(std::move(known));
    if (Pick(0, 5) == 0) {
      At(now_ + absl::Milliseconds(Pick(0, 20)), [this, index] { Cancel(index); });
    }
  }

  static bool Over(const Known& known) {
    return known.answered || known.dropped || known.taken == known.request->rows();
  }
  int64_t Waiting() const {
    return std::count_if(known_.begin(), known_.end(), [](const Known& k) { return !Over(k); });
  }

  void Cancel(size_t index) {
    Known& known = known_[index];
    known.cancelled = true;
    const int64_t before = batcher_->rows();
    const bool waited = !known.dropped && known.taken < known.request->rows();
    known.request->Cancel();
    EXPECT_EQ(batcher_->rows() < before, waited);  // its place is free at once
  }

  void AskForWork() {
    while (idle_workers_ > 0) {
      Batcher::Next next = batcher_->Take(now_, {idle_workers_, Pick(1, 4), Pick(1, 10)});
      if (const auto* time = std::get_if<absl::Time>(&next)) {
        if (*time < absl::InfiniteFuture()) {
          EXPECT_GT(*time, now_);
          At(*time, [] {});
        }
        return;
      }
      Start(std::make_shared<Batcher::Batch>(std::get<Batcher::Batch>(std::move(next))));
    }
  }

  void Start(const std::shared_ptr<Batcher::Batch>& batch) {
    int64_t rows = 0;
    for (const RequestRows& part : batch->rows) {
      rows += part.count;
      Known& known = Of(*part.request);
      EXPECT_GT(known.request->schedule().deadline, now_);
      EXPECT_EQ(part.start, known.taken);
      EXPECT_TRUE(part.request->SharesBatchWith(*batch->rows.front().request));
      // A delayed request also waits for requests that arrive after it.
      if (known.taken == 0 &&
          config_.default_queue_policy.timeout_action == QueuePolicy::TimeoutAction::kReject) {
        EXPECT_GE(known.patience, 0);
      }
      known.taken += part.count;
      for (Known& other : known_) {
        other.patience -= other.level == known.level && &other != &known ? 1 : 0;
      }
    }
    EXPECT_LE(rows, config_.max_batch_size);
    for (const auto& request : batch->expired) {
      request->Fail(absl::DeadlineExceededError("expired"));
    }
    --idle_workers_;
    At(now_ + absl::Milliseconds(Pick(0, 8)), [this, batch] {
      const bool fails = Pick(0, 20) == 0;
      for (const RequestRows& part : batch->rows) {
        if (fails) {
          part.request->Fail(absl::InternalError("failed"));
        } else {
          part.request->Finish(part.start, part.count,
                               {{"y", DataType::kFp32, {part.count, 1}, nullptr, 0, nullptr}},
                               "cpu:0", 1, {});
        }
      }
      ++idle_workers_;
    });
  }

  Known& Of(const InferenceRequest& request) {
    return known_[static_cast<size_t>(request.place().number)];
  }

  void Answer(const InferenceRequest& request, InferenceRequest::Done done,
              absl::StatusOr<InferenceResult> result) {
    const Known& known = Of(request);
    OrderedReplies& ordered = ordered_[known.level];
    if (!config_.preserve_ordering) {
      done(std::move(result));
    } else if (!result.ok()) {
      done(std::move(result));
      ordered.Skip(known.place);
    } else {
      ordered.Provide(known.place, [done = std::move(done), result = std::move(result)]() mutable {
        done(std::move(result));
      });
    }
  }

  void CheckAnswer(size_t index, const absl::StatusOr<InferenceResult>& result) {
    Known& known = known_[index];
    EXPECT_FALSE(known.answered);
    known.answered = true;
    ++answers_;
    if (!result.ok()) {
      return;
    }
    EXPECT_FALSE(known.cancelled && known.taken < known.request->rows());
    int64_t rows = 0;
    for (const ChunkReport& chunk : result->chunks) {
      rows += chunk.rows;
    }
    EXPECT_EQ(rows, known.request->rows());
    EXPECT_EQ(result->outputs[0].shape[0], rows);
    if (config_.preserve_ordering) {
      int64_t& last = last_answered_[known.level];
      EXPECT_GE(known.number, last);
      last = known.number;
    }
  }

  std::mt19937_64 random_;
  ModelConfig config_;
  std::optional<Batcher> batcher_;
  std::vector<OrderedReplies> ordered_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>(this);
  std::deque<Known> known_;
  std::map<size_t, int64_t> last_answered_;
  std::multimap<absl::Time, Event> events_;
  absl::Time now_ = kStart;
  int64_t idle_workers_ = 0;
  int64_t accepted_ = 0;
  int64_t answers_ = 0;
};

TEST(BatcherSchedulesTest, RandomSchedulesKeepAllInvariants) {
  constexpr uint64_t kSchedules = 100'000;
  for (uint64_t seed = 0; seed < kSchedules && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("schedule ", seed));
    Simulation(seed).Run();
  }
}

}  // namespace
}  // namespace braid

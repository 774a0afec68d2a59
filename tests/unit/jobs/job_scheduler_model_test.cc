// Random calls on a scheduler, compared with a small model of what must come out.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"
#include "server/jobs/job_scheduler.h"
#include "server/telemetry/metrics.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/manual_clock.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

constexpr int kRuns = 200;
constexpr int kBursts = 8;
constexpr int64_t kRows = 4;

// The last call of a user for a job.
enum class Wish { kRun, kPause, kCancel };

struct ModelJob {
  std::string identity;
  int64_t priority = 0;
  Wish wish = Wish::kRun;
};

// Jobs that make a row for each permission of the test. Rows that a job has made when it stops are
// saved, and the next run continues after them.
class CountingJobs final : public JobFactory {
 public:
  explicit CountingJobs(const JobSchedulerOptions& options) : options_(options) {}

  absl::StatusOr<std::unique_ptr<Job>> Make(const JobRecord& record) override {
    return std::make_unique<CountingJob>(this, record);
  }
  absl::Status Remove(const JobRecord&) override { return absl::OkStatus(); }

  // Lets the job make one more row.
  void Permit(const std::string& id) {
    const absl::MutexLock lock(&mu_);
    permitted_[id] = std::min(permitted_[id] + 1, kRows);
  }
  int64_t permitted(const std::string& id) const {
    const absl::MutexLock lock(&mu_);
    const auto found = permitted_.find(id);
    return found == permitted_.end() ? 0 : found->second;
  }
  // Returns all rows that any run of the job has made, in their order.
  std::vector<int64_t> made(const std::string& id) const {
    const absl::MutexLock lock(&mu_);
    const auto found = made_.find(id);
    return found == made_.end() ? std::vector<int64_t>() : found->second;
  }
  bool exceeded_limits() const { return exceeded_limits_.load(); }

 private:
  class CountingJob final : public Job {
   public:
    CountingJob(CountingJobs* jobs, const JobRecord& record)
        : jobs_(jobs), id_(record.id), identity_(record.identity) {}

    absl::StatusOr<JobResult> Run(JobContext* context) override {
      jobs_->Enter(id_, identity_);
      absl::StatusOr<JobResult> result = MakeRows(context);
      jobs_->Leave(id_);
      return result;
    }
    void CleanUp() override {}

   private:
    absl::StatusOr<JobResult> MakeRows(JobContext* context) {
      JobProgress progress;
      progress.rows = progress.durable_rows = jobs_->saved(id_);
      while (progress.rows < kRows) {
        if (context->stop() != JobStop::kNone) {
          progress.durable_rows = progress.rows;
          jobs_->Save(id_, progress.rows);
          BRAID_RETURN_IF_ERROR(context->Save(progress, ""));
          return absl::CancelledError("stopped");
        }
        if (jobs_->AwaitPermission(id_, progress.rows)) {
          jobs_->MakeRow(id_, progress.rows++);
        }
      }
      jobs_->Save(id_, progress.rows);
      return JobResult();
    }

    CountingJobs* const jobs_;
    const std::string id_;
    const std::string identity_;
  };

  void Enter(const std::string& id, const std::string& identity) {
    const absl::MutexLock lock(&mu_);
    const bool runs_twice = !running_.emplace(id, identity).second;
    const auto of_identity =
        std::ranges::count_if(running_, [&](const auto& job) { return job.second == identity; });
    if (runs_twice || static_cast<int64_t>(running_.size()) > options_.max_running ||
        (options_.max_running_per_identity > 0 &&
         of_identity > options_.max_running_per_identity)) {
      exceeded_limits_ = true;
    }
  }
  void Leave(const std::string& id) {
    const absl::MutexLock lock(&mu_);
    running_.erase(id);
  }
  // Waits for the permission to make `row`, but not for long: the job may have to stop.
  bool AwaitPermission(const std::string& id, int64_t row) {
    const absl::MutexLock lock(&mu_);
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return row < permitted_[id]; };
    return mu_.AwaitWithTimeout(absl::Condition(&ready), absl::Milliseconds(1));
  }
  int64_t saved(const std::string& id) {
    const absl::MutexLock lock(&mu_);
    return saved_[id];
  }
  void Save(const std::string& id, int64_t rows) {
    const absl::MutexLock lock(&mu_);
    saved_[id] = rows;
  }
  void MakeRow(const std::string& id, int64_t row) {
    const absl::MutexLock lock(&mu_);
    made_[id].push_back(row);
  }

  const JobSchedulerOptions options_;
  mutable absl::Mutex mu_;
  std::map<std::string, int64_t> permitted_;
  std::map<std::string, int64_t> saved_;
  std::map<std::string, std::vector<int64_t>> made_;
  std::map<std::string, std::string> running_;  // identity by ID
  std::atomic<bool> exceeded_limits_ = false;
};

class SchedulerModel {
 public:
  explicit SchedulerModel(int seed) : random_(static_cast<unsigned>(seed)) {
    options_.max_running = 1 + Random(3);
    options_.max_running_per_identity = Random(3);
    options_.max_crashes = 1000;
    jobs_ = std::make_unique<CountingJobs>(options_);
    absl::StatusOr<std::unique_ptr<JobStore>> store = JobStore::Open(":memory:", &clock_);
    EXPECT_THAT(store, IsOk());
    store_ = *std::move(store);
    Start();
  }

  void Run() {
    for (int burst = 0; burst < kBursts; ++burst) {
      for (int64_t calls = 1 + Random(4); calls > 0; --calls) {
        Act();
      }
      ASSERT_TRUE(Eventually([this] { return Explain().empty(); })) << Explain();
    }
    for (auto& [id, job] : model_) {
      if (job.wish == Wish::kPause && !HasEnded(Get(id).state)) {
        ASSERT_THAT(scheduler_->Resume(id), IsOk());
      }
      for (int64_t row = 0; row < kRows; ++row) {
        jobs_->Permit(id);
      }
    }
    for (const auto& [id, job] : model_) {
      ASSERT_TRUE(Eventually([&, id = id] { return HasEnded(Get(id).state); })) << id;
      CheckEnded(id, job);
    }
    EXPECT_FALSE(jobs_->exceeded_limits());
  }

 private:
  int64_t Random(int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_);
  }

  void Start() {
    absl::StatusOr<std::unique_ptr<JobScheduler>> started =
        JobScheduler::Start(store_.get(), jobs_.get(), &clock_, &metrics_, options_);
    ASSERT_THAT(started, IsOk());
    scheduler_ = *std::move(started);
  }

  JobRecord Get(const std::string& id) const {
    absl::StatusOr<JobRecord> job = store_->Get(id);
    EXPECT_THAT(job, IsOk());
    return job.value_or(JobRecord());
  }

  void Act() {
    const int64_t action = Random(12);
    if (model_.empty() || action <= 2) {
      Submit();
    } else if (action == 11) {
      Restart();
    } else {
      const auto job = std::next(model_.begin(), Random(static_cast<int64_t>(model_.size())));
      Change(action, job->first, &job->second);
    }
  }

  void Submit() {
    NewJob job;
    job.id = absl::StrCat("job-", model_.size());
    job.identity = absl::StrCat("user-", Random(3));
    job.priority = Random(4) - 1;
    job.spec = job.id;
    ASSERT_THAT(scheduler_->Submit(job), IsOk());
    model_[job.id] = {job.identity, job.priority, Wish::kRun};
  }

  void Change(int64_t action, const std::string& id, ModelJob* job) {
    if (action <= 5) {
      jobs_->Permit(id);
      return;
    }
    if (action == 10) {
      ASSERT_THAT(scheduler_->Cancel(id), IsOk());
      job->wish = Wish::kCancel;
      return;
    }
    const bool pause = action <= 7;
    const absl::StatusOr<JobRecord> changed =
        pause ? scheduler_->Pause(id) : scheduler_->Resume(id);
    if (absl::IsFailedPrecondition(changed.status())) {
      EXPECT_TRUE(HasEnded(Get(id).state));
      return;
    }
    ASSERT_THAT(changed, IsOk());
    if (job->wish != Wish::kCancel) {
      job->wish = pause ? Wish::kPause : Wish::kRun;
    }
  }

  // Ends the scheduler, sometimes as if the server had crashed while a job ran.
  void Restart() {
    scheduler_.reset();
    for (auto& [id, job] : model_) {
      if (Get(id).state != JobState::kQueued || Random(3) != 0) {
        continue;
      }
      JobMove start;
      start.to = JobState::kRunning;
      ASSERT_THAT(store_->Move(id, start), IsOk());
      if (Random(3) == 0) {
        ASSERT_THAT(store_->RequestPause(id, true), IsOk());
        job.wish = Wish::kPause;
      }
    }
    Start();
  }

  // Returns why the jobs are not where they must come to rest; empty if they are.
  std::string Explain() const {
    std::vector<const ModelJob*> running;
    std::vector<const ModelJob*> queued;
    for (const auto& [id, job] : model_) {
      const JobState state = Get(id).state;
      const bool done = jobs_->permitted(id) == kRows;
      const bool right = state == JobState::kSucceeded
                             ? done
                             : (job.wish == Wish::kCancel && state == JobState::kCancelled) ||
                                   (job.wish == Wish::kPause && state == JobState::kPaused) ||
                                   (job.wish == Wish::kRun && state == JobState::kQueued) ||
                                   (job.wish == Wish::kRun && state == JobState::kRunning && !done);
      if (!right) {
        return absl::StrCat(id, " is ", JobStateName(state));
      }
      if (state == JobState::kRunning) {
        running.push_back(&job);
        if (static_cast<int64_t>(jobs_->made(id).size()) < jobs_->permitted(id)) {
          return absl::StrCat(id, " makes rows");
        }
      } else if (state == JobState::kQueued) {
        queued.push_back(&job);
      }
    }
    for (const ModelJob* job : queued) {
      if (!IsBlocked(*job, running)) {
        return absl::StrCat("a job of ", job->identity, " waits that could run");
      }
    }
    return "";
  }

  // Returns true if a limit keeps a queued job from running, and no running job has to make room.
  bool IsBlocked(const ModelJob& job, const std::vector<const ModelJob*>& running) const {
    const bool identity_full = options_.max_running_per_identity > 0 &&
                               std::ranges::count(running, job.identity, &ModelJob::identity) >=
                                   options_.max_running_per_identity;
    const bool full = static_cast<int64_t>(running.size()) >= options_.max_running;
    return (full || identity_full) && std::ranges::none_of(running, [&](const ModelJob* other) {
             return other->priority < job.priority &&
                    (!identity_full || other->identity == job.identity);
           });
  }

  void CheckEnded(const std::string& id, const ModelJob& job) const {
    const JobRecord record = Get(id);
    std::vector<int64_t> rows = jobs_->made(id);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i], i) << id << " lost a row, or made one twice";
    }
    if (record.state == JobState::kSucceeded) {
      EXPECT_EQ(rows.size(), kRows);
    } else {
      EXPECT_EQ(record.state, JobState::kCancelled) << record.reason;
      EXPECT_EQ(job.wish, Wish::kCancel);
    }
    BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobTransition> transitions,
                               store_->Transitions(id, 0));
    for (const JobTransition& transition : transitions) {
      if (absl::StartsWith(transition.reason, "preempted by job '")) {
        const std::vector<std::string> parts = absl::StrSplit(transition.reason, '\'');
        EXPECT_GT(model_.at(parts[1]).priority, job.priority) << transition.reason;
      }
    }
  }

  std::mt19937 random_;
  ManualClock clock_;
  Metrics metrics_;
  JobSchedulerOptions options_;
  std::unique_ptr<CountingJobs> jobs_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<JobScheduler> scheduler_;
  std::map<std::string, ModelJob> model_;
};

TEST(JobSchedulerModelTest, RandomCallsLeaveJobsWhereTheModelDoes) {
  for (int seed = 0; seed < kRuns && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SchedulerModel(seed).Run();
  }
}

}  // namespace
}  // namespace braid

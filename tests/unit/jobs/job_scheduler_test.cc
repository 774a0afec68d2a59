#include "server/jobs/job_scheduler.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/telemetry/metrics.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/manual_clock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Body = std::function<absl::StatusOr<JobResult>(JobContext*)>;

// Makes jobs whose bodies the test sets by ID; without a body, a job succeeds at once.
class FakeFactory final : public JobFactory {
 public:
  absl::StatusOr<std::unique_ptr<Job>> Make(const JobRecord& record) override {
    const absl::MutexLock lock(&mu_);
    if (!make_error.ok()) {
      return make_error;
    }
    return std::make_unique<FakeJob>(this, record.id, bodies_[record.id]);
  }
  absl::Status Remove(const JobRecord& record) override {
    const absl::MutexLock lock(&mu_);
    removed_.push_back(record.id);
    return absl::OkStatus();
  }

  void Set(const std::string& id, Body body) {
    const absl::MutexLock lock(&mu_);
    bodies_[id] = std::move(body);
  }
  std::vector<std::string> started() const { return Copy(started_); }
  std::vector<std::string> cleaned() const { return Copy(cleaned_); }
  std::vector<std::string> removed() const { return Copy(removed_); }

  absl::Status make_error;

 private:
  class FakeJob final : public Job {
   public:
    FakeJob(FakeFactory* factory, std::string id, Body body)
        : factory_(factory), id_(std::move(id)), body_(std::move(body)) {}
    absl::StatusOr<JobResult> Run(JobContext* context) override {
      {
        const absl::MutexLock lock(&factory_->mu_);
        factory_->started_.push_back(id_);
      }
      return body_ ? body_(context) : JobResult();
    }
    void CleanUp() override {
      const absl::MutexLock lock(&factory_->mu_);
      factory_->cleaned_.push_back(id_);
    }

   private:
    FakeFactory* const factory_;
    const std::string id_;
    const Body body_;
  };

  std::vector<std::string> Copy(const std::vector<std::string>& ids) const {
    const absl::MutexLock lock(&mu_);
    return ids;
  }

  mutable absl::Mutex mu_;
  std::map<std::string, Body> bodies_;
  std::vector<std::string> started_;
  std::vector<std::string> cleaned_;
  std::vector<std::string> removed_;
};

// Runs until it is told to stop.
absl::StatusOr<JobResult> RunUntilStopped(JobContext* context) {
  while (context->stop() == JobStop::kNone) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::CancelledError("stopped");
}

class JobSchedulerTest : public ::testing::Test {
 protected:
  JobSchedulerTest() { OpenStore(); }

  void OpenStore() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<JobStore>> opened =
        JobStore::Open(dir_.path() / "jobs.sqlite", &clock_);
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
  }
  void Start() {
    absl::StatusOr<std::unique_ptr<JobScheduler>> started =
        JobScheduler::Start(store_.get(), &factory_, &clock_, &metrics_, options_);
    ASSERT_THAT(started, IsOk());
    scheduler_ = *std::move(started);
  }
  void Submit(const std::string& id, int64_t priority = 0, const std::string& identity = "") {
    NewJob job;
    job.identity = identity;
    job.id = id;
    job.model = "fashion";
    job.spec = id;
    job.priority = priority;
    ASSERT_THAT(scheduler_->Submit(job), IsOk());
  }
  // Adds a job and leaves it as a server does that crashes while the job runs.
  void Crash(const std::string& id) {
    NewJob job;
    job.id = id;
    job.spec = id;
    ASSERT_THAT(store_->Add(job), IsOk());
    JobMove start;
    start.to = JobState::kRunning;
    ASSERT_THAT(store_->Move(id, start), IsOk());
  }
  JobRecord Get(const std::string& id) const {
    absl::StatusOr<JobRecord> job = store_->Get(id);
    EXPECT_THAT(job, IsOk());
    return job.value_or(JobRecord());
  }
  // Stops the scheduler, which has then counted all changes.
  std::string DrainAndScrape() {
    EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
    return Scrape();
  }
  std::string Scrape() const {
    return prometheus::TextSerializer().Serialize(metrics_.registry()->Collect());
  }
  bool WaitFor(const std::string& id, JobState state) const {
    return Eventually([&] { return Get(id).state == state; });
  }

  const TempDir dir_;
  ManualClock clock_;
  Metrics metrics_;
  FakeFactory factory_;
  JobSchedulerOptions options_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<JobScheduler> scheduler_;
};

TEST_F(JobSchedulerTest, RunsAJobAndRecordsItsResult) {
  Start();
  factory_.Set("a", [](JobContext* context) -> absl::StatusOr<JobResult> {
    context->AddMetrics(1, {{"loss", 0.5}});
    context->AddLog(JobLogLevel::kInfo, "hello");
    JobResult result;
    result.version = 7;
    return result;
  });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kSucceeded));
  EXPECT_EQ(Get("a").result.version, 7);
  EXPECT_EQ(Get("a").attempts, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const JobMetricPage page, store_->Metrics("a", {}, 0, 10));
  EXPECT_THAT(page.metrics, ElementsAre(JobMetric{1, "loss", 0.5}));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobLogLine> lines, store_->Logs("a", 0, 10));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].text, "hello");
  EXPECT_THAT(factory_.cleaned(), ElementsAre("a"));
}

TEST_F(JobSchedulerTest, AFailedJobHasItsReason) {
  Start();
  factory_.Set("a", [](JobContext*) { return absl::NotFoundError("data.path: no file 'x'"); });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kFailed));
  EXPECT_EQ(Get("a").reason, "data.path: no file 'x' (NOT_FOUND)");
  EXPECT_THAT(factory_.cleaned(), ElementsAre("a"));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobLogLine> lines, store_->Logs("a", 0, 10));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].level, JobLogLevel::kError);
}

TEST_F(JobSchedulerTest, AJobThatCannotBeMadeFails) {
  factory_.make_error = absl::DataLossError("spec: cannot be read");
  Start();
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kFailed));
  EXPECT_EQ(Get("a").reason, "spec: cannot be read (DATA_LOSS)");
}

TEST_F(JobSchedulerTest, RunsAtMostSoManyJobsInTheOrderOfPriority) {
  options_.max_running = 2;
  Start();
  absl::Notification go;
  for (const char* id : {"a", "b"}) {
    factory_.Set(id, [&](JobContext*) {
      go.WaitForNotification();
      return JobResult();
    });
    Submit(id);
  }
  ASSERT_TRUE(Eventually([&] { return factory_.started().size() == 2; }));
  Submit("c");
  Submit("d", 1);
  EXPECT_EQ(Get("c").state, JobState::kQueued);
  EXPECT_EQ(Get("d").state, JobState::kQueued);
  go.Notify();
  ASSERT_TRUE(WaitFor("c", JobState::kSucceeded));
  ASSERT_TRUE(WaitFor("d", JobState::kSucceeded));
}

TEST_F(JobSchedulerTest, OneThreadRunsHigherPriorityFirst) {
  Start();
  absl::Notification go;
  factory_.Set("first", [&](JobContext*) {
    go.WaitForNotification();
    return JobResult();
  });
  Submit("first");
  ASSERT_TRUE(WaitFor("first", JobState::kRunning));
  Submit("low", -1);
  Submit("a");
  Submit("b");
  Submit("high", 1);
  go.Notify();
  ASSERT_TRUE(WaitFor("low", JobState::kSucceeded));
  EXPECT_THAT(factory_.started(), ElementsAre("first", "high", "a", "b", "low"));
}

TEST_F(JobSchedulerTest, FullQueueRejectsNewJobsButNotRetries) {
  options_.max_running = 1;
  options_.max_queued = 1;
  Start();
  factory_.Set("a", RunUntilStopped);
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  Submit("b");
  NewJob job;
  job.id = "c";
  EXPECT_THAT(scheduler_->Submit(job),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--max_queued_jobs=1")));
  Submit("b");
}

TEST_F(JobSchedulerTest, CancelEndsAQueuedJobAtOnce) {
  Start();
  factory_.Set("a", RunUntilStopped);
  Submit("a");
  Submit("b");
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord job, scheduler_->Cancel("b"));
  EXPECT_EQ(job.state, JobState::kCancelled);
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord again, scheduler_->Cancel("b"));
  EXPECT_EQ(again.state, JobState::kCancelled);
  EXPECT_THAT(factory_.cleaned(), IsEmpty());  // It never ran.
}

TEST_F(JobSchedulerTest, CancelEndsARunningJobAtItsNextStep) {
  Start();
  factory_.Set("a", RunUntilStopped);
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord job, scheduler_->Cancel("a"));
  EXPECT_TRUE(job.cancel_requested);
  ASSERT_TRUE(WaitFor("a", JobState::kCancelled));
  EXPECT_THAT(factory_.cleaned(), ElementsAre("a"));
}

TEST_F(JobSchedulerTest, AJobThatIsDoneBeforeItSeesTheCancellationSucceeds) {
  Start();
  factory_.Set("a", [](JobContext* context) -> absl::StatusOr<JobResult> {
    RunUntilStopped(context).IgnoreError();
    return JobResult();
  });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  ASSERT_THAT(scheduler_->Cancel("a"), IsOk());
  EXPECT_TRUE(WaitFor("a", JobState::kSucceeded));
}

TEST_F(JobSchedulerTest, PausedJobStaysPausedOverARestartAndContinuesAfterResume) {
  Start();
  factory_.Set("a", RunUntilStopped);
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  ASSERT_THAT(scheduler_->Pause("a"), IsOk());
  ASSERT_TRUE(WaitFor("a", JobState::kPaused));
  EXPECT_EQ(Get("a").reason, "paused by a user");
  EXPECT_FALSE(Get("a").pause_requested);
  EXPECT_THAT(factory_.cleaned(), IsEmpty());
  scheduler_.reset();
  OpenStore();
  factory_.Set("a", nullptr);
  Start();
  Submit("b");
  ASSERT_TRUE(WaitFor("b", JobState::kSucceeded));
  EXPECT_EQ(Get("a").state, JobState::kPaused);
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobLogLine> lines, store_->Logs("a", 0, 10));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].text, "paused by a user");
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord paused, scheduler_->Pause("a"));
  EXPECT_EQ(paused.state, JobState::kPaused);
  ASSERT_THAT(scheduler_->Resume("a"), IsOk());
  EXPECT_TRUE(WaitFor("a", JobState::kSucceeded));
  EXPECT_EQ(Get("a").attempts, 2);
}

TEST_F(JobSchedulerTest, PauseOfAQueuedJobTakesEffectAtOnce) {
  options_.max_running = 0;
  Start();
  Submit("a");
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord job, scheduler_->Pause("a"));
  EXPECT_EQ(job.state, JobState::kPaused);
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord cancelled, scheduler_->Cancel("a"));
  EXPECT_EQ(cancelled.state, JobState::kCancelled);
}

TEST_F(JobSchedulerTest, EndedJobsCannotBePausedOrResumed) {
  Start();
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kSucceeded));
  EXPECT_THAT(scheduler_->Pause("a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'a' is SUCCEEDED")));
  EXPECT_THAT(scheduler_->Resume("a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cannot be resumed")));
}

TEST_F(JobSchedulerTest, ResumeBeforeTheJobHasStoppedReturnsItToTheQueue) {
  Start();
  absl::Notification paused;
  absl::Notification go;
  factory_.Set("a", [&](JobContext* context) {
    RunUntilStopped(context).IgnoreError();
    paused.Notify();
    go.WaitForNotification();
    return absl::CancelledError("stopped");
  });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord pausing, scheduler_->Pause("a"));
  EXPECT_TRUE(pausing.pause_requested);
  paused.WaitForNotification();
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord resumed, scheduler_->Resume("a"));
  EXPECT_FALSE(resumed.pause_requested);
  factory_.Set("a", nullptr);
  go.Notify();
  EXPECT_TRUE(WaitFor("a", JobState::kSucceeded));
  EXPECT_EQ(Get("a").attempts, 2);
}

TEST_F(JobSchedulerTest, PauseAndCancelReplaceADrain) {
  options_.max_running = 2;
  Start();
  absl::Notification go;
  for (const char* id : {"a", "b"}) {
    factory_.Set(id, [&](JobContext* context) {
      RunUntilStopped(context).IgnoreError();
      go.WaitForNotification();
      return absl::CancelledError("stopped");
    });
    Submit(id);
    ASSERT_TRUE(WaitFor(id, JobState::kRunning));
  }
  scheduler_->RequestStop();
  ASSERT_THAT(scheduler_->Pause("a"), IsOk());
  ASSERT_THAT(scheduler_->Pause("b"), IsOk());
  ASSERT_THAT(scheduler_->Cancel("b"), IsOk());
  go.Notify();
  EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
  EXPECT_EQ(Get("a").state, JobState::kPaused);
  EXPECT_EQ(Get("b").state, JobState::kCancelled);
}

TEST_F(JobSchedulerTest, APauseSurvivesACrashBeforeTheJobHasStopped) {
  options_.max_running = 0;
  Crash("a");
  ASSERT_THAT(store_->RequestPause("a", true), IsOk());
  Start();
  EXPECT_EQ(Get("a").state, JobState::kPaused);
  EXPECT_EQ(Get("a").crashes, 1);
}

TEST_F(JobSchedulerTest, HigherPriorityPreemptsARunningJobWhichContinuesLater) {
  Start();
  factory_.Set("low", RunUntilStopped);
  factory_.Set("high", RunUntilStopped);
  Submit("low", -1);
  ASSERT_TRUE(WaitFor("low", JobState::kRunning));
  Submit("same", -1);
  Submit("high", 2);
  ASSERT_TRUE(WaitFor("high", JobState::kRunning));
  EXPECT_EQ(Get("low").state, JobState::kQueued);
  EXPECT_EQ(Get("low").reason, "preempted by job 'high' of priority 2");
  EXPECT_THAT(factory_.cleaned(), IsEmpty());
  factory_.Set("low", nullptr);
  ASSERT_THAT(scheduler_->Cancel("high"), IsOk());
  EXPECT_TRUE(WaitFor("same", JobState::kSucceeded));
  EXPECT_THAT(factory_.started(), ElementsAre("low", "high", "low", "same"));
}

TEST_F(JobSchedulerTest, AResumedJobPreemptsAsANewOneDoes) {
  Start();
  factory_.Set("low", RunUntilStopped);
  Submit("low");
  ASSERT_TRUE(WaitFor("low", JobState::kRunning));
  factory_.Set("high", RunUntilStopped);
  Submit("high", 1);
  ASSERT_TRUE(WaitFor("high", JobState::kRunning));
  ASSERT_THAT(scheduler_->Pause("high"), IsOk());
  ASSERT_TRUE(WaitFor("low", JobState::kRunning));
  ASSERT_THAT(scheduler_->Resume("high"), IsOk());
  EXPECT_TRUE(WaitFor("high", JobState::kRunning));
  EXPECT_EQ(Get("low").state, JobState::kQueued);
}

TEST_F(JobSchedulerTest, JobsBeyondTheLimitOfTheirIdentityLetOthersPass) {
  options_.max_running = 2;
  options_.max_running_per_identity = 1;
  Start();
  for (const char* id : {"a1", "b1"}) {
    factory_.Set(id, RunUntilStopped);
  }
  Submit("a1", 0, "ann");
  ASSERT_TRUE(WaitFor("a1", JobState::kRunning));
  Submit("a2", 0, "ann");
  Submit("b1", 0, "bob");
  ASSERT_TRUE(WaitFor("b1", JobState::kRunning));
  EXPECT_EQ(Get("a2").state, JobState::kQueued);
  ASSERT_THAT(scheduler_->Cancel("a1"), IsOk());
  EXPECT_TRUE(WaitFor("a2", JobState::kSucceeded));
}

TEST_F(JobSchedulerTest, PausedJobsCountAsWaiting) {
  options_.max_running = 0;
  options_.max_queued = 1;
  Start();
  Submit("a");
  ASSERT_THAT(scheduler_->Pause("a"), IsOk());
  NewJob job;
  job.id = "b";
  EXPECT_THAT(scheduler_->Submit(job),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("paused")));
}

TEST_F(JobSchedulerTest, DrainReturnsRunningJobsToTheQueueAndTheNextStartContinues) {
  Start();
  factory_.Set("a", RunUntilStopped);
  Submit("a");
  Submit("b");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").reason, "the server was shut down");
  EXPECT_EQ(Get("a").crashes, 0);
  EXPECT_EQ(Get("b").state, JobState::kQueued);
  EXPECT_THAT(factory_.cleaned(), IsEmpty());
  scheduler_.reset();
  OpenStore();
  factory_.Set("a", nullptr);
  Start();
  EXPECT_TRUE(WaitFor("a", JobState::kSucceeded));
  EXPECT_TRUE(WaitFor("b", JobState::kSucceeded));
  EXPECT_EQ(Get("a").attempts, 2);
  EXPECT_THAT(factory_.started(), ElementsAre("a", "a", "b"));
}

TEST_F(JobSchedulerTest, DrainGivesUpAtTheDeadline) {
  Start();
  absl::Notification go;
  factory_.Set("a", [&](JobContext*) {
    go.WaitForNotification();
    return JobResult();
  });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  EXPECT_FALSE(scheduler_->Drain(absl::Now()));
  go.Notify();
  EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
  EXPECT_EQ(Get("a").state, JobState::kSucceeded);
}

TEST_F(JobSchedulerTest, AnErrorWhileDrainingFailsTheJob) {
  Start();
  factory_.Set("a", [](JobContext* context) -> absl::StatusOr<JobResult> {
    RunUntilStopped(context).IgnoreError();
    return absl::DataLossError("broken");
  });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
  EXPECT_EQ(Get("a").state, JobState::kFailed);
}

TEST_F(JobSchedulerTest, ACrashedJobContinuesAndFailsAfterTooManyCrashes) {
  options_.max_running = 0;  // Nothing starts.
  options_.max_crashes = 3;
  Crash("a");
  for (int64_t crashes = 1; crashes <= 2; ++crashes) {
    Start();
    EXPECT_EQ(Get("a").state, JobState::kQueued);
    EXPECT_EQ(Get("a").crashes, crashes);
    EXPECT_EQ(Get("a").reason, "the server crashed while the job ran");
    scheduler_.reset();
    JobMove start;
    start.to = JobState::kRunning;
    ASSERT_THAT(store_->Move("a", start), IsOk());
  }
  Start();
  EXPECT_EQ(Get("a").state, JobState::kFailed);
  EXPECT_THAT(Get("a").reason, HasSubstr("crashed while the job ran, 3 times in a row"));
  EXPECT_THAT(factory_.cleaned(), ElementsAre("a"));
}

TEST_F(JobSchedulerTest, AJobContinuesAfterARestartIfADeviceWasLost) {
  options_.device_lost = [] { return true; };
  factory_.Set("a", [](JobContext*) { return absl::UnavailableError("cuda:0 is lost"); });
  Start();
  Submit("a");
  ASSERT_TRUE(Eventually([&] { return Get("a").reason == "a device was lost while the job ran"; }));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  scheduler_.reset();
  OpenStore();
  factory_.Set("a", nullptr);
  Start();
  EXPECT_TRUE(WaitFor("a", JobState::kSucceeded));
}

TEST_F(JobSchedulerTest, ACancelledJobStaysCancelledAfterACrash) {
  options_.max_running = 0;
  Crash("a");
  ASSERT_THAT(store_->RequestCancel("a"), IsOk());
  Start();
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  EXPECT_THAT(factory_.cleaned(), ElementsAre("a"));
}

TEST_F(JobSchedulerTest, ACancellationDuringADrainIsNotForgotten) {
  options_.max_running = 0;
  Crash("a");
  ASSERT_THAT(store_->RequestCancel("a"), IsOk());
  JobMove drained;
  drained.to = JobState::kQueued;
  ASSERT_THAT(store_->Move("a", drained), IsOk());
  Start();
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
}

TEST_F(JobSchedulerTest, ShowsTheProgressOfARunningJob) {
  Start();
  std::atomic<bool> reported = false;
  factory_.Set("a", [&](JobContext* context) {
    JobProgress progress;
    progress.total_rows = 1000;
    context->Report(progress);
    clock_.Advance(absl::Seconds(4));
    progress.rows = 800;
    context->Report(progress);
    reported = true;
    return RunUntilStopped(context);
  });
  Submit("a");
  ASSERT_TRUE(Eventually([&] { return reported.load(); }));
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord job, scheduler_->Get("a"));
  EXPECT_EQ(job.progress.rows, 800);
  EXPECT_EQ(job.progress.rows_per_second, 200);
}

TEST_F(JobSchedulerTest, CountsNewRowsAndStepsAndRemembersTheLastOnes) {
  Start();
  absl::Notification reported;
  absl::Notification scraped;
  absl::Notification noted;
  factory_.Set("a", [&](JobContext* context) {
    JobProgress progress;
    const auto report = [&](int64_t rows, int64_t step) {
      progress.rows = rows;
      progress.step = step;
      context->Report(progress);
    };
    report(100, 10);  // Made by an earlier run.
    clock_.Advance(absl::Seconds(4));
    report(300, 30);
    clock_.Advance(absl::Seconds(4));
    report(300, 30);
    reported.Notify();
    scraped.WaitForNotification();
    context->NoteActivity();
    noted.Notify();
    return RunUntilStopped(context);
  });
  const absl::Time start = clock_.Now();
  Submit("a");
  reported.WaitForNotification();
  ASSERT_THAT(scheduler_->Running(), SizeIs(1));
  EXPECT_EQ(scheduler_->Running()[0]->last_progress(), start + absl::Seconds(4));
  EXPECT_EQ(scheduler_->Running()[0]->progress().steps_per_second, 0);
  EXPECT_THAT(Scrape(), AllOf(HasSubstr("braid_job_rows_total{kind=\"train\"} 200\n"),
                              HasSubstr("braid_job_steps_total 20\n")));
  scraped.Notify();
  noted.WaitForNotification();
  EXPECT_EQ(scheduler_->Running()[0]->last_progress(), start + absl::Seconds(8));
}

TEST_F(JobSchedulerTest, RecordsHowLongJobsWaitAndRun) {
  Start();
  absl::Notification go;
  factory_.Set("a", [&](JobContext*) {
    go.WaitForNotification();
    clock_.Advance(absl::Minutes(5));
    return JobResult();
  });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  Submit("b");
  clock_.Advance(absl::Minutes(1));
  ASSERT_THAT(scheduler_->Pause("b"), IsOk());
  clock_.Advance(absl::Hours(1));
  ASSERT_THAT(scheduler_->Resume("b"), IsOk());
  go.Notify();
  ASSERT_TRUE(WaitFor("b", JobState::kSucceeded));
  constexpr char kQueued[] = "braid_job_queue_duration_seconds";
  constexpr char kEnded[] = "{kind=\"train\",state=\"succeeded\"";
  EXPECT_THAT(DrainAndScrape(),
              AllOf(HasSubstr(absl::StrCat(kQueued, "_count{kind=\"train\"} 2\n")),
                    HasSubstr(absl::StrCat(kQueued, "_sum{kind=\"train\"} 300\n")),
                    HasSubstr(absl::StrCat("braid_job_duration_seconds_count", kEnded, "} 2\n")),
                    HasSubstr(absl::StrCat("braid_job_duration_seconds_sum", kEnded, "} 3960\n")),
                    HasSubstr("braid_job_pauses_total{kind=\"train\"} 1\n")));
}

TEST_F(JobSchedulerTest, CountsFailuresByCode) {
  options_.max_crashes = 1;
  Crash("crashed");
  Start();
  factory_.Set("a", [](JobContext*) { return absl::NotFoundError("data.path: no file 'x'"); });
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kFailed));
  Submit("b");
  ASSERT_TRUE(WaitFor("b", JobState::kSucceeded));
  EXPECT_THAT(DrainAndScrape(),
              AllOf(HasSubstr("braid_job_failures_total{code=\"ABORTED\",kind=\"train\"} 1\n"),
                    HasSubstr("braid_job_failures_total{code=\"NOT_FOUND\",kind=\"train\"} 1\n"),
                    HasSubstr("braid_job_failures_total{code=\"UNKNOWN\",kind=\"train\"} 0\n")));
}

TEST_F(JobSchedulerTest, CountsPreemptionsButNotPausesThatAreWithdrawn) {
  Start();
  factory_.Set("low", RunUntilStopped);
  Submit("low");
  ASSERT_TRUE(WaitFor("low", JobState::kRunning));
  Submit("high", 1);
  ASSERT_TRUE(WaitFor("high", JobState::kSucceeded));

  absl::Notification paused;
  absl::Notification go;
  factory_.Set("withdrawn", [&](JobContext* context) {
    RunUntilStopped(context).IgnoreError();
    paused.Notify();
    go.WaitForNotification();
    return absl::CancelledError("stopped");
  });
  ASSERT_THAT(scheduler_->Cancel("low"), IsOk());
  Submit("withdrawn");
  ASSERT_TRUE(WaitFor("withdrawn", JobState::kRunning));
  ASSERT_THAT(scheduler_->Pause("withdrawn"), IsOk());
  paused.WaitForNotification();
  ASSERT_THAT(scheduler_->Resume("withdrawn"), IsOk());
  factory_.Set("withdrawn", nullptr);
  go.Notify();
  ASSERT_TRUE(WaitFor("withdrawn", JobState::kSucceeded));
  EXPECT_THAT(DrainAndScrape(), AllOf(HasSubstr("braid_job_preemptions_total{kind=\"train\"} 1\n"),
                                      HasSubstr("braid_job_pauses_total{kind=\"train\"} 0\n")));
}

TEST_F(JobSchedulerTest, WatchersSeeChangesUntilTheyLeave) {
  Start();
  std::atomic<int> changes = 0;
  std::atomic<int> others = 0;
  const int64_t watch = scheduler_->Watch("a", [&] { ++changes; });
  scheduler_->Watch("b", [&] { ++others; });
  factory_.Set("a", [](JobContext* context) {
    context->Report({});
    return JobResult();
  });
  Submit("a");
  // Started, reported, ended.
  ASSERT_TRUE(Eventually([&] { return changes.load() == 3; }));
  scheduler_->Unwatch(watch);
  ASSERT_THAT(scheduler_->Remove("a"), IsOk());
  EXPECT_EQ(changes.load(), 3);
  EXPECT_EQ(others.load(), 0);
}

TEST_F(JobSchedulerTest, RemovesEndedJobsOnly) {
  Start();
  factory_.Set("a", RunUntilStopped);
  Submit("a");
  ASSERT_TRUE(WaitFor("a", JobState::kRunning));
  EXPECT_THAT(scheduler_->Remove("a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("RUNNING")));
  EXPECT_THAT(factory_.removed(), IsEmpty());
  ASSERT_THAT(scheduler_->Cancel("a"), IsOk());
  ASSERT_TRUE(WaitFor("a", JobState::kCancelled));
  EXPECT_THAT(scheduler_->Remove("a"), IsOk());
  EXPECT_THAT(factory_.removed(), ElementsAre("a"));
}

TEST_F(JobSchedulerTest, RemovesRecordsAfterTheRetention) {
  options_.retention = absl::Hours(24);
  options_.max_running = 0;
  Start();
  for (const char* id : {"old", "new", "queued"}) {
    Submit(id);
  }
  ASSERT_THAT(scheduler_->Cancel("old"), IsOk());
  clock_.Advance(absl::Hours(20));
  ASSERT_THAT(scheduler_->Cancel("new"), IsOk());
  clock_.Advance(absl::Hours(5));
  scheduler_.reset();
  Start();
  EXPECT_THAT(store_->Get("old"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("old")));
  EXPECT_EQ(Get("new").state, JobState::kCancelled);
  EXPECT_EQ(Get("queued").state, JobState::kQueued);
  EXPECT_THAT(factory_.removed(), ElementsAre("old"));
}

}  // namespace
}  // namespace braid

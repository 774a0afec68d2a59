#include "server/jobs/store/job_store.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/jobs/store/sqlite.h"
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

NewJob Named(const std::string& id) {
  NewJob job;
  job.id = id;
  job.model = "fashion";
  job.spec = std::string("spec\0of ", 8) + id;
  return job;
}

JobMove To(JobState state, const std::string& reason = "") {
  JobMove move;
  move.to = state;
  move.reason = reason;
  return move;
}

class JobStoreTest : public ::testing::Test {
 protected:
  JobStoreTest() { Reopen(); }

  void Reopen() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<JobStore>> opened = JobStore::Open(path_, &clock_);
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
  }
  JobRecord Get(const std::string& id) const {
    absl::StatusOr<JobRecord> job = store_->Get(id);
    EXPECT_THAT(job, IsOk());
    return job.value_or(JobRecord());
  }
  void Add(const std::string& id) { ASSERT_THAT(store_->Add(Named(id)), IsOk()); }
  void Move(const std::string& id, const JobMove& move) {
    ASSERT_THAT(store_->Move(id, move), IsOk());
  }

  const TempDir dir_;
  const std::string path_ = dir_.path() / "jobs.sqlite";
  ManualClock clock_;
  std::unique_ptr<JobStore> store_;
};

std::vector<std::string> Ids(const absl::StatusOr<JobPage>& page) {
  std::vector<std::string> ids;
  EXPECT_THAT(page, IsOk());
  for (const JobRecord& job : page.value_or(JobPage()).jobs) {
    ids.push_back(job.id);
  }
  return ids;
}

TEST_F(JobStoreTest, KeepsRecordsOverRestarts) {
  NewJob job = Named("a");
  job.kind = JobKind::kInfer;
  job.tags = {"first", "zweite \"Ä\""};
  job.priority = -3;
  job.identity = "ann";
  clock_.Advance(absl::Microseconds(1'700'000'000'000'001));
  ASSERT_THAT(store_->Add(job), IsOk());
  Reopen();
  const JobRecord read = Get("a");
  EXPECT_EQ(read.id, "a");
  EXPECT_EQ(read.kind, JobKind::kInfer);
  EXPECT_EQ(read.model, "fashion");
  EXPECT_EQ(read.tags, job.tags);
  EXPECT_EQ(read.priority, -3);
  EXPECT_EQ(read.spec, job.spec);
  EXPECT_EQ(read.identity, "ann");
  EXPECT_EQ(read.state, JobState::kQueued);
  EXPECT_EQ(read.created, absl::FromUnixMicros(1'700'000'000'000'001));
  EXPECT_EQ(read.started, absl::InfiniteFuture());
  EXPECT_EQ(read.ended, absl::InfiniteFuture());
  EXPECT_EQ(read.attempts, 0);
}

TEST_F(JobStoreTest, AddingTheSameJobAgainReturnsIt) {
  Add("a");
  Move("a", To(JobState::kRunning));
  BRAID_ASSERT_OK_AND_ASSIGN(const JobRecord again, store_->Add(Named("a")));
  EXPECT_EQ(again.state, JobState::kRunning);
  NewJob other = Named("a");
  other.spec = "other";
  EXPECT_THAT(store_->Add(other),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("id: job 'a' already exists")));
}

TEST_F(JobStoreTest, UnknownIdIsNotFound) {
  const auto not_found =
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("id: there is no job 'x\\n'"));
  EXPECT_THAT(store_->Get("x\n"), not_found);
  EXPECT_THAT(store_->Move("x\n", To(JobState::kRunning)), not_found);
  EXPECT_THAT(store_->RequestCancel("x\n"), not_found);
  EXPECT_THAT(store_->SaveProgress("x\n", {}, ""), not_found);
  EXPECT_THAT(store_->AddMetrics("x\n", {}), not_found);
  EXPECT_THAT(store_->Metrics("x\n", {}, 0, 1), not_found);
  EXPECT_THAT(store_->AddLog("x\n", JobLogLevel::kInfo, ""), not_found);
  EXPECT_THAT(store_->Logs("x\n", 0, 1), not_found);
  EXPECT_THAT(store_->Transitions("x\n", 0), not_found);
  EXPECT_THAT(store_->Remove("x\n"), not_found);
}

TEST_F(JobStoreTest, RecordsTransitionsWithTimeAndReason) {
  Add("a");
  clock_.Advance(absl::Seconds(1));
  Move("a", To(JobState::kRunning));
  clock_.Advance(absl::Seconds(1));
  Move("a", To(JobState::kQueued, "shutdown"));
  clock_.Advance(absl::Seconds(-2));
  Move("a", To(JobState::kRunning));
  Move("a", To(JobState::kFailed, "no such column"));
  Reopen();
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobTransition> all, store_->Transitions("a", 0));
  ASSERT_THAT(all, SizeIs(5));
  EXPECT_EQ(all[0].from, std::nullopt);
  EXPECT_EQ(all[0].to, JobState::kQueued);
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i].from, all[i - 1].to);
    EXPECT_EQ(all[i].number, all[i - 1].number + 1);
  }
  EXPECT_EQ(all[2].reason, "shutdown");
  EXPECT_EQ(all[2].time, absl::UnixEpoch() + absl::Seconds(2));
  EXPECT_EQ(all[3].time, absl::UnixEpoch());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobTransition> last, store_->Transitions("a", 4));
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].reason, "no such column");
  const JobRecord job = Get("a");
  EXPECT_EQ(job.attempts, 2);
  EXPECT_EQ(job.started, absl::UnixEpoch() + absl::Seconds(1));
  EXPECT_EQ(job.ended, absl::UnixEpoch());
  EXPECT_EQ(job.reason, "no such column");
}

TEST_F(JobStoreTest, RejectedTransitionChangesNothing) {
  Add("a");
  EXPECT_THAT(store_->Move("a", To(JobState::kSucceeded)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("QUEUED")));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobTransition> all, store_->Transitions("a", 0));
  EXPECT_THAT(all, SizeIs(1));
}

TEST_F(JobStoreTest, QueuedJobsAreInTheOrderOfPriorityAndSubmission) {
  for (const auto& [id, priority] : std::vector<std::pair<std::string, int64_t>>{
           {"low", -1}, {"first", 0}, {"high", 5}, {"second", 0}, {"high2", 5}}) {
    NewJob job = Named(id);
    job.priority = priority;
    ASSERT_THAT(store_->Add(job), IsOk());
  }
  Move("second", To(JobState::kRunning));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<QueuedJob> queued, store_->Queued());
  std::vector<std::string> order;
  for (const QueuedJob& job : queued) {
    order.push_back(job.id);
  }
  EXPECT_THAT(order, ElementsAre("high", "high2", "first", "low"));
}

TEST_F(JobStoreTest, JobsInAStateAreInTheOrderOfPriorityAndSubmission) {
  for (const auto& [id, priority] : std::vector<std::pair<std::string, int64_t>>{
           {"low", -1}, {"first", 0}, {"running", 5}, {"second", 0}, {"high", 5}}) {
    NewJob job = Named(id);
    job.priority = priority;
    ASSERT_THAT(store_->Add(job), IsOk());
  }
  Move("running", To(JobState::kRunning));
  const auto ids = [this](JobState state, int64_t limit) {
    JobPage page;
    const absl::StatusOr<std::vector<JobRecord>> jobs = store_->InState(state, limit);
    EXPECT_THAT(jobs, IsOk());
    page.jobs = jobs.value_or(std::vector<JobRecord>());
    return Ids(page);
  };
  EXPECT_THAT(ids(JobState::kQueued, 3), ElementsAre("high", "first", "second"));
  EXPECT_THAT(ids(JobState::kRunning, 3), ElementsAre("running"));
  EXPECT_THAT(ids(JobState::kPaused, 3), IsEmpty());
}

TEST_F(JobStoreTest, ListsInPagesAndByFilter) {
  for (const char* id : {"a", "b", "c", "d"}) {
    NewJob job = Named(id);
    job.model = job.id == "c" ? "other" : "fashion";
    job.tags = job.id == "b" ? std::vector<std::string>{"x", "y"} : std::vector<std::string>();
    job.identity = job.id == "d" ? "ann" : "bob";
    ASSERT_THAT(store_->Add(job), IsOk());
  }
  Move("a", To(JobState::kRunning));
  EXPECT_THAT(Ids(store_->ListNewest({}, 10)), ElementsAre("d", "c", "b", "a"));
  BRAID_ASSERT_OK_AND_ASSIGN(const JobPage first, store_->ListNewest({}, 3));
  EXPECT_FALSE(first.complete);
  BRAID_ASSERT_OK_AND_ASSIGN(const JobPage rest,
                             store_->ListNewest({}, 3, first.jobs.back().number));
  EXPECT_TRUE(rest.complete);
  EXPECT_THAT(Ids(rest), ElementsAre("a"));
  EXPECT_THAT(Ids(store_->ListOldest({}, 2, Get("b").number)), ElementsAre("c", "d"));

  JobFilter filter;
  filter.states = {JobState::kRunning, JobState::kFailed};
  EXPECT_THAT(Ids(store_->ListOldest(filter, 10)), ElementsAre("a"));
  filter = {};
  filter.model = "other";
  EXPECT_THAT(Ids(store_->ListOldest(filter, 10)), ElementsAre("c"));
  filter = {};
  filter.tag = "y";
  EXPECT_THAT(Ids(store_->ListOldest(filter, 10)), ElementsAre("b"));
  filter = {};
  filter.identity = "bob";
  filter.sees_model = [](const std::string& model) { return model == "fashion"; };
  EXPECT_THAT(Ids(store_->ListOldest(filter, 10)), ElementsAre("a", "b"));
}

TEST_F(JobStoreTest, ListsTheJobsThatEndedBeforeATime) {
  for (const char* id : {"later", "first", "running", "queued"}) {
    Add(id);
  }
  Move("running", To(JobState::kRunning));
  Move("first", To(JobState::kCancelled));
  clock_.Advance(absl::Microseconds(1));
  Move("later", To(JobState::kCancelled));
  const auto ended_before = [this](absl::Duration since_start) {
    return store_->EndedBefore(absl::UnixEpoch() + since_start).value();
  };
  EXPECT_THAT(ended_before(absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(ended_before(absl::Microseconds(1)), ElementsAre("first"));
  EXPECT_THAT(ended_before(absl::InfiniteDuration()), ElementsAre("later", "first"));
}

TEST_F(JobStoreTest, ProgressMemoryAndResultAreKept) {
  Add("a");
  Move("a", To(JobState::kRunning));
  JobProgress progress;
  progress.rows = 1000;
  progress.total_rows = 3000;
  progress.step = 4;
  progress.total_steps = 12;
  progress.epoch = 1;
  progress.epochs = 2;
  progress.loss = 0.1 + 0.2;
  progress.wait_seconds = 1.5;
  progress.durable_rows = 500;
  ASSERT_THAT(store_->SaveProgress("a", progress, "{\"memory\"}"), IsOk());
  JobMove end = To(JobState::kSucceeded);
  end.result = JobResult();
  end.result->version = 3;
  end.result->metrics = {{"accuracy", 0.9}, {"loss", std::numeric_limits<double>::infinity()}};
  end.result->step = 12;
  end.result->output = "/data/scores.parquet";
  end.result->rows = 7;
  Move("a", end);
  Reopen();
  const JobRecord job = Get("a");
  EXPECT_EQ(job.progress, progress);
  EXPECT_EQ(job.memory, "{\"memory\"}");
  EXPECT_EQ(job.result.version, 3);
  EXPECT_EQ(job.result.output, "/data/scores.parquet");
  EXPECT_EQ(job.result.metrics.at("accuracy"), 0.9);
  EXPECT_TRUE(std::isnan(job.result.metrics.at("loss")));
}

TEST_F(JobStoreTest, DurableProgressResetsTheCountOfCrashes) {
  Add("a");
  JobMove crash = To(JobState::kQueued);
  crash.crashed = true;
  for (int i = 0; i < 2; ++i) {
    Move("a", To(JobState::kRunning));
    Move("a", crash);
  }
  EXPECT_EQ(Get("a").crashes, 2);
  JobProgress progress;
  progress.rows = 10;
  ASSERT_THAT(store_->SaveProgress("a", progress, ""), IsOk());
  EXPECT_EQ(Get("a").crashes, 2);
  progress.durable_rows = 10;
  ASSERT_THAT(store_->SaveProgress("a", progress, ""), IsOk());
  EXPECT_EQ(Get("a").crashes, 0);
  EXPECT_EQ(Get("a").attempts, 2);
}

TEST_F(JobStoreTest, CancelRequestIsKept) {
  Add("a");
  Move("a", To(JobState::kRunning));
  EXPECT_FALSE(Get("a").cancel_requested);
  ASSERT_THAT(store_->RequestCancel("a"), IsOk());
  Reopen();
  EXPECT_TRUE(Get("a").cancel_requested);
  EXPECT_EQ(Get("a").state, JobState::kRunning);
}

TEST_F(JobStoreTest, MetricsAreSortedAndPagedByStep) {
  Add("a");
  Add("b");
  ASSERT_THAT(store_->AddMetrics("a", {{2, "loss", 0.5}, {1, "lr", 0.1}, {1, "loss", 0.7}}),
              IsOk());
  ASSERT_THAT(store_->AddMetrics("b", {{1, "loss", 9}}), IsOk());
  ASSERT_THAT(store_->AddMetrics("a", {{2, "loss", 0.25}, {3, "loss", 0.125}}), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const JobMetricPage all, store_->Metrics("a", {}, 0, 100));
  EXPECT_THAT(all.metrics, ElementsAre(JobMetric{1, "loss", 0.7}, JobMetric{1, "lr", 0.1},
                                       JobMetric{2, "loss", 0.25}, JobMetric{3, "loss", 0.125}));
  EXPECT_EQ(all.next_step, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const JobMetricPage page, store_->Metrics("a", {}, 0, 1));
  EXPECT_THAT(page.metrics, SizeIs(2));  // A step is on one page.
  EXPECT_EQ(page.next_step, 2);
  BRAID_ASSERT_OK_AND_ASSIGN(const JobMetricPage named, store_->Metrics("a", {"lr"}, 0, 100));
  EXPECT_THAT(named.metrics, ElementsAre(JobMetric{1, "lr", 0.1}));
}

TEST_F(JobStoreTest, MetricsMayBeNanOrInfinite) {
  Add("a");
  const double infinity = std::numeric_limits<double>::infinity();
  ASSERT_THAT(store_->AddMetrics("a", {{1, "a", std::nan("")}, {1, "b", -infinity}}), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const JobMetricPage page, store_->Metrics("a", {}, 0, 100));
  ASSERT_THAT(page.metrics, SizeIs(2));
  EXPECT_TRUE(std::isnan(page.metrics[0].value));
  EXPECT_EQ(page.metrics[1].value, -infinity);
}

TEST_F(JobStoreTest, KeepsTheNewestLogLines) {
  Add("a");
  store_.reset();
  {  // One transaction is faster than one for each line.
    BRAID_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SqlDatabase> database,
                               SqlDatabase::Open(path_));
    ASSERT_THAT(
        database->Run("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                      "INSERT INTO logs SELECT number, i, 0, 2, i FROM n, jobs",
                      JobStore::kMaxLogLines),
        IsOk());
  }
  Reopen();
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(store_->AddLog("a", JobLogLevel::kInfo, "newest"), IsOk());
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobLogLine> first, store_->Logs("a", 0, 2));
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(first[0].number, 3);
  EXPECT_EQ(first[0].text, "3");
  EXPECT_EQ(first[0].level, JobLogLevel::kWarning);
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JobLogLine> rest,
                             store_->Logs("a", first[1].number, JobStore::kMaxLogLines));
  EXPECT_THAT(rest, SizeIs(JobStore::kMaxLogLines - 2));
  EXPECT_EQ(rest.back().text, "newest");
}

TEST_F(JobStoreTest, RemovesAnEndedJobWithAllThatBelongsToIt) {
  Add("a");
  Add("b");
  for (const char* id : {"a", "b"}) {
    ASSERT_THAT(store_->AddMetrics(id, {{1, "loss", 1}}), IsOk());
    ASSERT_THAT(store_->AddLog(id, JobLogLevel::kInfo, "line"), IsOk());
  }
  EXPECT_THAT(store_->Remove("a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("job 'a' is QUEUED")));
  Move("a", To(JobState::kCancelled));
  const int64_t number = Get("a").number;
  ASSERT_THAT(store_->Remove("a"), IsOk());
  EXPECT_THAT(store_->Get("a"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'a'")));
  store_.reset();
  BRAID_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SqlDatabase> database, SqlDatabase::Open(path_));
  for (const std::string table : {"transitions", "metrics", "logs"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const int64_t left,
                               database->Integer("SELECT count(*) FROM " + table));
    EXPECT_EQ(left, 1) << table;
    BRAID_ASSERT_OK_AND_ASSIGN(const int64_t owner, database->Integer("SELECT job FROM " + table));
    EXPECT_NE(owner, number) << table;
  }
}

TEST_F(JobStoreTest, LockedFileIsAnError) {
  EXPECT_THAT(JobStore::Open(path_, &clock_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path_), HasSubstr("locked"))));
  Add("a");  // The store that has the lock goes on.
}

TEST_F(JobStoreTest, FileThatIsNoDatabaseStaysAsItIs) {
  const std::string other = dir_.path() / "other.sqlite";
  dir_.Write("other.sqlite", std::string(5000, 'x'));
  EXPECT_THAT(JobStore::Open(other, &clock_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(other)));
  EXPECT_EQ(std::filesystem::file_size(other), 5000);
}

TEST_F(JobStoreTest, DamagedFileIsAnErrorAndStaysAsItIs) {
  for (int i = 0; i < 50; ++i) {
    Add("job-" + std::to_string(i));
  }
  store_.reset();
  const auto size = std::filesystem::file_size(path_);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff{4096} * 3);
    file << std::string(4096, '\xee');
  }
  EXPECT_THAT(JobStore::Open(path_, &clock_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
  EXPECT_EQ(std::filesystem::file_size(path_), size);
}

TEST_F(JobStoreTest, SchemaOfANewerServerIsAnError) {
  store_.reset();
  {
    BRAID_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SqlDatabase> database,
                               SqlDatabase::Open(path_));
    ASSERT_THAT(database->Execute("PRAGMA user_version = 99"), IsOk());
  }
  EXPECT_THAT(JobStore::Open(path_, &clock_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("schema version 99")));
}

TEST(MigrateTest, AppliesMissingMigrationsOnceEach) {
  const TempDir dir;
  const std::string path = dir.path() / "a.sqlite";
  const char* const steps[] = {"CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1)",
                               "ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 7",
                               "INSERT INTO t (a) VALUES (2); SELECT fail(1)"};
  BRAID_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SqlDatabase> database, SqlDatabase::Open(path));
  const absl::Span<const char* const> all(steps);
  ASSERT_THAT(Migrate(database.get(), all.first(1)), IsOk());
  ASSERT_THAT(Migrate(database.get(), all.first(2)), IsOk());
  ASSERT_THAT(Migrate(database.get(), all.first(2)), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const int64_t sum, database->Integer("SELECT sum(a * b) FROM t"));
  EXPECT_EQ(sum, 7);
  // A migration that fails leaves nothing behind.
  EXPECT_THAT(Migrate(database.get(), all), testing::Not(IsOk()));
  BRAID_ASSERT_OK_AND_ASSIGN(const int64_t count, database->Integer("SELECT count(*) FROM t"));
  EXPECT_EQ(count, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const int64_t version, database->Integer("PRAGMA user_version"));
  EXPECT_EQ(version, 2);
}

}  // namespace
}  // namespace braid

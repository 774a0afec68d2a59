#include "server/jobs/store/job_store.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

using Json = nlohmann::json;

// Never change an entry that was released: add one.
// Times are microseconds since 1970. jobs.number is the order of submission.
constexpr const char* kMigrations[] = {
    R"sql(
      CREATE TABLE jobs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        kind INTEGER NOT NULL,
        model TEXT NOT NULL,
        tags TEXT NOT NULL,               -- JSON list
        priority INTEGER NOT NULL,
        spec BLOB NOT NULL,
        identity TEXT NOT NULL,
        state INTEGER NOT NULL,
        reason TEXT NOT NULL,
        created INTEGER NOT NULL,
        started INTEGER,
        ended INTEGER,
        attempts INTEGER NOT NULL DEFAULT 0,
        crashes INTEGER NOT NULL DEFAULT 0,
        cancel_requested INTEGER NOT NULL DEFAULT 0,
        progress TEXT NOT NULL DEFAULT '{}',
        memory TEXT NOT NULL DEFAULT '',
        result TEXT NOT NULL DEFAULT '{}'
      ) STRICT;
      CREATE INDEX jobs_by_state ON jobs (state, priority DESC, number);
      CREATE TABLE transitions (
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        time INTEGER NOT NULL,
        from_state INTEGER NOT NULL,      -- 0: submitted
        to_state INTEGER NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (job, number)
      ) STRICT, WITHOUT ROWID;
      CREATE TABLE metrics (
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        step INTEGER NOT NULL,
        name TEXT NOT NULL,
        value REAL,                       -- NULL: NaN
        PRIMARY KEY (job, step, name)
      ) STRICT, WITHOUT ROWID;
      CREATE TABLE logs (
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        time INTEGER NOT NULL,
        level INTEGER NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (job, number)
      ) STRICT, WITHOUT ROWID;
    )sql",
    "ALTER TABLE jobs ADD COLUMN pause_requested INTEGER NOT NULL DEFAULT 0",
};

// Columns that ReadRecord() expects, in this order.
#define BRAID_JOB_COLUMNS                                                                       \
  "number, id, kind, model, tags, priority, identity, state, reason, created, started, ended, " \
  "attempts, crashes, cancel_requested, progress, memory, result, spec, pause_requested"

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string WriteProgress(const JobProgress& progress) {
  Json json = {{"rows", progress.rows},
               {"total_rows", progress.total_rows},
               {"step", progress.step},
               {"total_steps", progress.total_steps},
               {"epoch", progress.epoch},
               {"epochs", progress.epochs},
               {"wait_seconds", progress.wait_seconds},
               {"durable_rows", progress.durable_rows},
               {"skipped_rows", progress.skipped_rows}};
  if (progress.loss.has_value()) {
    json["loss"] = *progress.loss;  // null if it is not finite
  }
  return Dump(json);
}

// A value that is not finite was written as null.
double FiniteOrNan(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

JobProgress ReadProgress(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  JobProgress progress;
  if (!json.is_object()) {
    return progress;
  }
  progress.rows = json.value("rows", int64_t{0});
  progress.total_rows = json.value("total_rows", int64_t{0});
  progress.step = json.value("step", int64_t{0});
  progress.total_steps = json.value("total_steps", int64_t{0});
  progress.epoch = json.value("epoch", int64_t{0});
  progress.epochs = json.value("epochs", int64_t{0});
  progress.wait_seconds = json.value("wait_seconds", 0.0);
  progress.durable_rows = json.value("durable_rows", int64_t{0});
  progress.skipped_rows = json.value("skipped_rows", int64_t{0});
  if (const auto loss = json.find("loss"); loss != json.end()) {
    progress.loss = FiniteOrNan(*loss);
  }
  return progress;
}

std::string WriteResult(const JobResult& result) {
  return Dump(Json{{"version", result.version},
                   {"metrics", result.metrics},
                   {"step", result.step},
                   {"output", result.output},
                   {"rows", result.rows},
                   {"skipped_rows", result.skipped_rows}});
}

JobResult ReadResult(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  JobResult result;
  if (!json.is_object()) {
    return result;
  }
  result.version = json.value("version", int64_t{0});
  result.step = json.value("step", int64_t{0});
  result.output = json.value("output", std::string());
  result.rows = json.value("rows", int64_t{0});
  result.skipped_rows = json.value("skipped_rows", int64_t{0});
  if (const auto metrics = json.find("metrics"); metrics != json.end() && metrics->is_object()) {
    for (const auto& [name, value] : metrics->items()) {
      result.metrics[name] = FiniteOrNan(value);
    }
  }
  return result;
}

std::vector<std::string> ReadTags(const std::string& text) {
  std::vector<std::string> tags;
  if (const Json json = Json::parse(text, nullptr, false); json.is_array()) {
    for (const Json& tag : json) {
      tags.push_back(tag.is_string() ? tag.get<std::string>() : tag.dump());
    }
  }
  return tags;
}

absl::Time TimeOrNever(const SqlStatement& row, int column) {
  return row.IsNull(column) ? absl::InfiniteFuture() : absl::FromUnixMicros(row.Integer(column));
}

JobRecord ReadRecord(const SqlStatement& row) {
  JobRecord job;
  job.number = row.Integer(0);
  job.id = row.Text(1);
  job.kind = static_cast<JobKind>(row.Integer(2));
  job.model = row.Text(3);
  job.tags = ReadTags(row.Text(4));
  job.priority = row.Integer(5);
  job.identity = row.Text(6);
  job.state = static_cast<JobState>(row.Integer(7));
  job.reason = row.Text(8);
  job.created = absl::FromUnixMicros(row.Integer(9));
  job.started = TimeOrNever(row, 10);
  job.ended = TimeOrNever(row, 11);
  job.attempts = row.Integer(12);
  job.crashes = row.Integer(13);
  job.cancel_requested = row.Integer(14) != 0;
  job.progress = ReadProgress(row.Text(15));
  job.memory = row.Text(16);
  job.result = ReadResult(row.Text(17));
  job.spec = row.Text(18);
  job.pause_requested = row.Integer(19) != 0;
  return job;
}

bool Matches(const JobFilter& filter, const JobRecord& job) {
  const auto contains = [](const auto& values, const auto& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  };
  return (filter.states.empty() || contains(filter.states, job.state)) &&
         (filter.model.empty() || filter.model == job.model) &&
         (filter.tag.empty() || contains(job.tags, filter.tag)) &&
         (filter.identity.empty() || filter.identity == job.identity) &&
         (filter.sees_model == nullptr || filter.sees_model(job.model));
}

}  // namespace

absl::Status NoJob(absl::string_view id) {
  return absl::NotFoundError(absl::StrCat("id: there is no job '",
                                          absl::Utf8SafeCHexEscape(Excerpt(id)),
                                          "' (braid jobs list shows the IDs)"));
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::string& path,
                                                         const Clock* clock) {
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<SqlDatabase> database, SqlDatabase::Open(path));
  {
    BRAID_ASSIGN_OR_RETURN(SqlStatement check, database->Prepare("PRAGMA quick_check(1)"));
    BRAID_ASSIGN_OR_RETURN(const bool found, check.Next());
    if (const std::string text = found ? check.Text(0) : ""; text != "ok") {
      // The first line is a headline.
      const size_t line = absl::StartsWith(text, "***") ? text.find('\n') + 1 : 0;
      return absl::DataLossError(absl::StrCat(
          "'", path, "': damaged: ", FirstLine(text.substr(line)),
          " (expected a file that SQLite can read: restore a backup, or move the file away, which "
          "loses all jobs)"));
    }
  }
  BRAID_RETURN_IF_ERROR(Migrate(database.get(), kMigrations));
  return std::unique_ptr<JobStore>(new JobStore(std::move(database), clock));
}

absl::StatusOr<JobRecord> JobStore::Add(const NewJob& job) {
  const absl::MutexLock lock(&mu_);
  if (absl::StatusOr<JobRecord> existing = Find(job.id);
      existing.ok() || !absl::IsNotFound(existing.status())) {
    if (existing.ok() && existing->spec != job.spec) {
      return absl::AlreadyExistsError(
          absl::StrCat("id: job '", job.id,
                       "' already exists with a different spec (use a new ID, or the same spec)"));
    }
    return existing;
  }
  const int64_t now = absl::ToUnixMicros(clock_->Now());
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kDisk));
  BRAID_ASSIGN_OR_RETURN(
      SqlStatement insert,
      database_->Query("INSERT INTO jobs (id, kind, model, tags, priority, identity, state, "
                       "reason, created, spec) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       job.id, static_cast<int64_t>(job.kind), job.model, Dump(Json(job.tags)),
                       job.priority, job.identity, static_cast<int64_t>(JobState::kQueued), "",
                       now));
  insert.BindBlob(10, job.spec);
  BRAID_RETURN_IF_ERROR(insert.Run());
  BRAID_RETURN_IF_ERROR(AddTransition(database_->last_insert_number(), 0, JobMove(), now));
  BRAID_RETURN_IF_ERROR(transaction.Commit());
  return Find(job.id);
}

absl::StatusOr<JobRecord> JobStore::Get(absl::string_view id) const {
  const absl::MutexLock lock(&mu_);
  return Find(id);
}

absl::StatusOr<JobRecord> JobStore::Find(absl::string_view id) const {
  BRAID_ASSIGN_OR_RETURN(
      SqlStatement row,
      database_->Query("SELECT " BRAID_JOB_COLUMNS " FROM jobs WHERE id = ?", id));
  BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
  return found ? absl::StatusOr<JobRecord>(ReadRecord(row)) : NoJob(id);
}

absl::StatusOr<int64_t> JobStore::NumberOf(absl::string_view id) const {
  BRAID_ASSIGN_OR_RETURN(SqlStatement row,
                         database_->Query("SELECT number FROM jobs WHERE id = ?", id));
  BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
  return found ? absl::StatusOr<int64_t>(row.Integer(0)) : NoJob(id);
}

absl::StatusOr<JobPage> JobStore::ListOldest(const JobFilter& filter, int64_t limit,
                                             int64_t after) const {
  return List("SELECT " BRAID_JOB_COLUMNS " FROM jobs WHERE number > ? ORDER BY number", filter,
              limit, after);
}

absl::StatusOr<JobPage> JobStore::ListNewest(const JobFilter& filter, int64_t limit,
                                             int64_t before) const {
  return List("SELECT " BRAID_JOB_COLUMNS " FROM jobs WHERE number < ? ORDER BY number DESC",
              filter, limit, before);
}

absl::StatusOr<JobPage> JobStore::List(const char* sql, const JobFilter& filter, int64_t limit,
                                       int64_t from) const {
  const absl::MutexLock lock(&mu_);
  JobPage page;
  BRAID_ASSIGN_OR_RETURN(SqlStatement row, database_->Query(sql, from));
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
    if (!found) {
      return page;
    }
    JobRecord job = ReadRecord(row);
    if (!Matches(filter, job)) {
      continue;
    }
    if (static_cast<int64_t>(page.jobs.size()) == limit) {
      page.complete = false;
      return page;
    }
    page.jobs.push_back(std::move(job));
  }
}

absl::StatusOr<std::vector<JobRecord>> JobStore::InState(JobState state, int64_t limit) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(SqlStatement row,
                         database_->Query("SELECT " BRAID_JOB_COLUMNS " FROM jobs WHERE state = ? "
                                          "ORDER BY priority DESC, number LIMIT ?",
                                          static_cast<int64_t>(state), limit));
  std::vector<JobRecord> jobs;
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
    if (!found) {
      return jobs;
    }
    jobs.push_back(ReadRecord(row));
  }
}

absl::StatusOr<std::vector<QueuedJob>> JobStore::Queued() const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(SqlStatement row,
                         database_->Query("SELECT id, identity, priority FROM jobs WHERE state = ? "
                                          "ORDER BY priority DESC, number",
                                          static_cast<int64_t>(JobState::kQueued)));
  std::vector<QueuedJob> jobs;
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
    if (!found) {
      return jobs;
    }
    jobs.push_back({row.Text(0), row.Text(1), row.Integer(2)});
  }
}

absl::StatusOr<std::vector<std::string>> JobStore::EndedBefore(absl::Time time) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(SqlStatement row,
                         database_->Query("SELECT id FROM jobs WHERE ended < ? ORDER BY number",
                                          absl::ToUnixMicros(time)));
  std::vector<std::string> ids;
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
    if (!found) {
      return ids;
    }
    ids.push_back(row.Text(0));
  }
}

absl::StatusOr<int64_t> JobStore::CountWaiting() const {
  const absl::MutexLock lock(&mu_);
  return database_->Integer(absl::StrCat("SELECT count(*) FROM jobs WHERE state IN (",
                                         static_cast<int64_t>(JobState::kQueued), ", ",
                                         static_cast<int64_t>(JobState::kPaused), ")"));
}

absl::StatusOr<std::vector<JobCount>> JobStore::Count() const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(
      SqlStatement counts,
      database_->Query("SELECT kind, state, count(*) FROM jobs GROUP BY kind, state"));
  std::vector<JobCount> result;
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool more, counts.Next());
    if (!more) {
      return result;
    }
    result.push_back({static_cast<JobKind>(counts.Integer(0)),
                      static_cast<JobState>(counts.Integer(1)), counts.Integer(2)});
  }
}

absl::StatusOr<JobRecord> JobStore::Move(absl::string_view id, const JobMove& move) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const JobRecord job, Find(id));
  BRAID_RETURN_IF_ERROR(CheckTransition(job.state, move.to));
  const int64_t now = absl::ToUnixMicros(clock_->Now());
  const bool starts = move.to == JobState::kRunning;
  const auto to = static_cast<int64_t>(move.to);
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kDisk));
  BRAID_RETURN_IF_ERROR(
      database_->Run("UPDATE jobs SET state = ?, reason = ?, attempts = attempts + ?, "
                     "crashes = crashes + ?, result = ?, pause_requested = 0 WHERE number = ?",
                     to, move.reason, int64_t{starts}, int64_t{move.crashed},
                     WriteResult(move.result.value_or(job.result)), job.number));
  if (starts) {
    BRAID_RETURN_IF_ERROR(database_->Run(
        "UPDATE jobs SET started = coalesce(started, ?) WHERE number = ?", now, job.number));
  }
  if (HasEnded(move.to)) {
    BRAID_RETURN_IF_ERROR(
        database_->Run("UPDATE jobs SET ended = ? WHERE number = ?", now, job.number));
  }
  BRAID_RETURN_IF_ERROR(AddTransition(job.number, static_cast<int64_t>(job.state), move, now));
  BRAID_RETURN_IF_ERROR(transaction.Commit());
  return Find(id);
}

absl::Status JobStore::AddTransition(int64_t number, int64_t from, const JobMove& move,
                                     int64_t now) {
  return database_->Run(
      "INSERT INTO transitions SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4, ?5 "
      "FROM transitions WHERE job = ?1",
      number, now, from, static_cast<int64_t>(move.to), move.reason);
}

absl::Status JobStore::RequestCancel(absl::string_view id) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const int64_t number, NumberOf(id));
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kDisk));
  BRAID_RETURN_IF_ERROR(
      database_->Run("UPDATE jobs SET cancel_requested = 1 WHERE number = ?", number));
  return transaction.Commit();
}

absl::Status JobStore::RequestPause(absl::string_view id, bool pause) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const int64_t number, NumberOf(id));
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kDisk));
  BRAID_RETURN_IF_ERROR(database_->Run("UPDATE jobs SET pause_requested = ? WHERE number = ?",
                                       int64_t{pause}, number));
  return transaction.Commit();
}

absl::Status JobStore::SaveProgress(absl::string_view id, const JobProgress& progress,
                                    absl::string_view memory) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const JobRecord job, Find(id));
  const bool grew = progress.durable_rows > job.progress.durable_rows;
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kProcess));
  BRAID_RETURN_IF_ERROR(database_->Run(
      "UPDATE jobs SET progress = ?, memory = ?, crashes = crashes * ? WHERE number = ?",
      WriteProgress(progress), memory, int64_t{!grew}, job.number));
  return transaction.Commit();
}

absl::Status JobStore::Remove(absl::string_view id) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const JobRecord job, Find(id));
  if (!HasEnded(job.state)) {
    return absl::FailedPreconditionError(
        absl::StrCat("id: job '", job.id, "' is ", JobStateName(job.state),
                     " (expected a job that has ended; CancelJob ends it)"));
  }
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kDisk));
  BRAID_RETURN_IF_ERROR(database_->Run("DELETE FROM jobs WHERE number = ?", job.number));
  return transaction.Commit();
}

absl::StatusOr<std::vector<JobTransition>> JobStore::Transitions(absl::string_view id,
                                                                 int64_t after) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const int64_t number, NumberOf(id));
  std::vector<JobTransition> transitions;
  BRAID_ASSIGN_OR_RETURN(
      SqlStatement row,
      database_->Query("SELECT number, time, from_state, to_state, reason FROM transitions "
                       "WHERE job = ? AND number > ? ORDER BY number",
                       number, after));
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
    if (!found) {
      return transitions;
    }
    JobTransition& transition = transitions.emplace_back();
    transition.number = row.Integer(0);
    transition.time = absl::FromUnixMicros(row.Integer(1));
    if (row.Integer(2) != 0) {
      transition.from = static_cast<JobState>(row.Integer(2));
    }
    transition.to = static_cast<JobState>(row.Integer(3));
    transition.reason = row.Text(4);
  }
}

absl::Status JobStore::AddMetrics(absl::string_view id, absl::Span<const JobMetric> metrics) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const int64_t number, NumberOf(id));
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kProcess));
  {
    BRAID_ASSIGN_OR_RETURN(SqlStatement insert,
                           database_->Prepare("INSERT OR REPLACE INTO metrics (job, step, name, "
                                              "value) VALUES (?, ?, ?, ?)"));
    for (const JobMetric& metric : metrics) {
      insert.BindAll(number, metric.step, metric.name, metric.value);
      BRAID_RETURN_IF_ERROR(insert.Run());
      insert.Reset();
    }
  }
  return transaction.Commit();
}

absl::StatusOr<JobMetricPage> JobStore::Metrics(absl::string_view id,
                                                const std::vector<std::string>& names,
                                                int64_t first_step, int64_t limit) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const int64_t number, NumberOf(id));
  JobMetricPage page;
  BRAID_ASSIGN_OR_RETURN(
      SqlStatement row,
      database_->Query("SELECT step, name, value FROM metrics WHERE job = ? AND step >= ? "
                       "ORDER BY step, name",
                       number, first_step));
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
    if (!found) {
      return page;
    }
    JobMetric metric = {row.Integer(0), row.Text(1), row.Number(2)};
    if (!names.empty() && std::find(names.begin(), names.end(), metric.name) == names.end()) {
      continue;
    }
    if (static_cast<int64_t>(page.metrics.size()) >= limit &&
        metric.step != page.metrics.back().step) {
      page.next_step = metric.step;
      return page;
    }
    page.metrics.push_back(std::move(metric));
  }
}

absl::Status JobStore::AddLog(absl::string_view id, JobLogLevel level, absl::string_view text) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const int64_t number, NumberOf(id));
  BRAID_ASSIGN_OR_RETURN(SqlTransaction transaction,
                         SqlTransaction::Begin(database_.get(), SqlTransaction::Sync::kProcess));
  BRAID_RETURN_IF_ERROR(
      database_->Run("INSERT INTO logs SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4 "
                     "FROM logs WHERE job = ?1",
                     number, absl::ToUnixMicros(clock_->Now()), static_cast<int64_t>(level), text));
  BRAID_RETURN_IF_ERROR(
      database_->Run("DELETE FROM logs WHERE job = ?1 AND number <= "
                     "(SELECT max(number) FROM logs WHERE job = ?1) - ?2",
                     number, kMaxLogLines));
  return transaction.Commit();
}

absl::StatusOr<std::vector<JobLogLine>> JobStore::Logs(absl::string_view id, int64_t after,
                                                       int64_t limit) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const int64_t number, NumberOf(id));
  std::vector<JobLogLine> lines;
  BRAID_ASSIGN_OR_RETURN(SqlStatement row,
                         database_->Query("SELECT number, time, level, text FROM logs "
                                          "WHERE job = ? AND number > ? ORDER BY number LIMIT ?",
                                          number, after, limit));
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool found, row.Next());
    if (!found) {
      return lines;
    }
    lines.push_back({row.Integer(0), absl::FromUnixMicros(row.Integer(1)),
                     static_cast<JobLogLevel>(row.Integer(2)), row.Text(3)});
  }
}

#undef BRAID_JOB_COLUMNS

}  // namespace braid

#include "server/jobs/jobs.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr absl::string_view kStoreFile = "jobs.sqlite";
constexpr absl::string_view kCacheDirectory = "cache";

}  // namespace

Jobs::Jobs(JobsOptions options, TrainerRegistry* trainers, Publisher* publisher, Metrics* metrics,
           JobSpecReader read_spec, const Clock* clock)
    : options_(std::move(options)), clock_(clock), metrics_(metrics) {
  if (options_.data_dir.empty()) {
    error_ = absl::FailedPreconditionError(
        "jobs: the server was started without --data_dir, where they are stored");
  } else if (const absl::Status status = Open(trainers, publisher, std::move(read_spec));
             !status.ok()) {
    Disable(status);
  }
}

absl::Status Jobs::Open(TrainerRegistry* trainers, Publisher* publisher, JobSpecReader read_spec) {
  BRAID_ASSIGN_OR_RETURN(store_,
                         JobStore::Open(absl::StrCat(options_.data_dir, "/", kStoreFile), clock_));
  BRAID_ASSIGN_OR_RETURN(
      rows_,
      RowCache::Open(absl::StrCat(options_.data_dir, "/", kCacheDirectory), options_.cache_bytes));
  maker_ = std::make_unique<JobMaker>(
      JobServices{trainers, publisher, rows_.get(), metrics_, clock_, options_.data,
                  options_.model_repository, options_.output_root, options_.upload_root},
      std::move(read_spec));
  return absl::OkStatus();
}

void Jobs::Disable(const absl::Status& why) {
  Log(LogModule::kJobs).error("the server runs without jobs: {}", std::string(why.message()));
  error_ = absl::FailedPreconditionError(
      absl::StrCat("jobs: the server runs without jobs: ", why.message()));
}

void Jobs::Start() {
  if (!error_.ok()) {
    return;
  }
  absl::StatusOr<std::unique_ptr<JobScheduler>> scheduler =
      JobScheduler::Start(store_.get(), maker_.get(), clock_, metrics_, options_.scheduler);
  if (scheduler.ok()) {
    scheduler_ = *std::move(scheduler);
    started_ = true;
  } else {
    Disable(scheduler.status());
  }
}

void Jobs::RequestStop() {
  if (scheduler_ != nullptr) {
    scheduler_->RequestStop();
  }
}

bool Jobs::Drain(absl::Time deadline) {
  return scheduler_ == nullptr || scheduler_->Drain(deadline);
}

}  // namespace braid

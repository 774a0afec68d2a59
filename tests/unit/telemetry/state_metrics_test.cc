#include "server/telemetry/state_metrics.h"

#include <time.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/telemetry/device_metrics.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/model_metrics.h"
#include "server/telemetry/process_metrics.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Serialize(const prometheus::Collectable& collectable) {
  return prometheus::TextSerializer().Serialize(collectable.Collect());
}

TEST(StateMetricsTest, ReportsTheServersState) {
  const StateMetrics metrics([] {
    ServerState state{"1.2", 3, 4096, {{"m", 7}}, {}, 2, 1};
    state.devices.push_back({"cpu:0", "cpu", "", "", true, {{"models", 40}}});
    state.devices.push_back({"cuda:1", "cuda", "0", "GPU-aa", false, {{"cache", 8}}});
    return state;
  });
  EXPECT_THAT(
      Serialize(metrics),
      AllOf(HasSubstr("braid_requests_in_flight 3\n"),
            HasSubstr("braid_request_bytes_in_flight 4096\n"),
            HasSubstr("braid_model_ready{model=\"m\",version=\"7\"} 1\n"),
            HasSubstr("braid_device_info{device=\"cpu:0\",kind=\"cpu\",gpu=\"\",uuid=\"\"} 1\n"),
            HasSubstr("braid_device_info{device=\"cuda:1\",kind=\"cuda\",gpu=\"0\","
                      "uuid=\"GPU-aa\"} 1\n"),
            HasSubstr("braid_device_healthy{device=\"cpu:0\"} 1\n"),
            HasSubstr("braid_device_healthy{device=\"cuda:1\"} 0\n"),
            HasSubstr("braid_device_memory_bytes{device=\"cpu:0\",owner=\"models\"} 40\n"),
            HasSubstr("braid_device_memory_bytes{device=\"cuda:1\",owner=\"cache\"} 8\n")));
  EXPECT_THAT(Serialize(metrics), AllOf(HasSubstr("braid_trainers{state=\"running\"} 2\n"),
                                        HasSubstr("braid_trainers{state=\"failed\"} 1\n"),
                                        HasSubstr("braid_build_info{version=\"1.2\"} 1\n")));
}

TEST(StateMetricsTest, ReportsTheQuotaOfDatasetsIfThereIsOne) {
  const auto text = [](std::optional<int64_t> bytes, std::optional<int64_t> quota) {
    ServerState state{"1.2"};
    state.dataset_bytes = bytes;
    state.dataset_quota = quota;
    return Serialize(StateMetrics([state] { return state; }));
  };
  EXPECT_THAT(text(30, 100), AllOf(HasSubstr("braid_dataset_bytes 30\n"),
                                   HasSubstr("braid_dataset_quota_bytes 100\n")));
  EXPECT_THAT(text(30, std::nullopt),
              AllOf(HasSubstr("braid_dataset_bytes 30\n"), Not(HasSubstr("quota"))));
  EXPECT_THAT(text(std::nullopt, std::nullopt), Not(HasSubstr("braid_dataset_")));
}

TEST(StateMetricsTest, ReportsJobsByStateAndRunningJobs) {
  ServerState state{"1.2"};
  state.jobs = {{"train", "queued", 3}, {"infer", "failed", 0}};
  RunningJobState job;
  job.id = "nightly";
  job.kind = "train";
  job.model = "m";
  job.started = absl::FromUnixSeconds(1'500'000'000);
  job.last_progress = absl::FromUnixMillis(1'500'000'030'250);
  job.rows = 250;
  job.total_rows = 1000;
  job.steps = 5;
  job.total_steps = 20;
  job.rows_per_second = 50;
  job.steps_per_second = 1;
  job.wait_seconds = 1.5;
  job.skipped_rows = 2;
  job.loss = 0.25;
  state.running_jobs = {job};
  const std::string text = Serialize(StateMetrics([state] { return state; }));
  EXPECT_THAT(text, AllOf(HasSubstr("braid_jobs{kind=\"train\",state=\"queued\"} 3\n"),
                          HasSubstr("braid_jobs{kind=\"infer\",state=\"failed\"} 0\n")));
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"started_timestamp_seconds", "1500000000"},
           {"last_progress_timestamp_seconds", "1500000030.25"},
           {"progress_ratio", "0.25"},
           {"done_rows", "250"},
           {"planned_rows", "1000"},
           {"skipped_rows", "2"},
           {"done_steps", "5"},
           {"planned_steps", "20"},
           {"rows_per_second", "50"},
           {"steps_per_second", "1"},
           {"data_wait_seconds_total", "1.5"},
           {"loss", "0.25"}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("braid_job_", name,
                                             "{job_id=\"nightly\",kind=\"train\",model=\"m\"} ",
                                             value, "\n")));
  }
}

TEST(StateMetricsTest, TotalsOfAJobAreAbsentUntilTheyAreKnown) {
  ServerState state{"1.2"};
  state.running_jobs = {{"scores", "infer", "m", absl::UnixEpoch(), absl::UnixEpoch()}};
  EXPECT_THAT(Serialize(StateMetrics([state] { return state; })),
              AllOf(HasSubstr("braid_job_done_rows{"), Not(HasSubstr("braid_job_planned_rows")),
                    Not(HasSubstr("braid_job_progress_ratio")), Not(HasSubstr("_steps")),
                    Not(HasSubstr("braid_job_loss"))));
}

TEST(StateMetricsTest, EmptyFamiliesAreAbsent) {
  const StateMetrics metrics([] { return ServerState{"1.2"}; });
  EXPECT_THAT(Serialize(metrics),
              AllOf(HasSubstr("braid_requests_in_flight 0\n"), Not(HasSubstr("braid_model_ready")),
                    Not(HasSubstr("braid_device"))));
}

// Large server: 100 models with two methods each, and 8 devices.
class LargeServer {
 public:
  LargeServer() {
    for (int m = 0; m < 100; ++m) {
      const std::string model = absl::StrCat("model_", m);
      models_.push_back(std::make_unique<ModelMetrics>(&metrics_, model));
      models_.back()->CountBatch(m);
      for (const char* method : {"ModelInfer", "ModelMetadata"}) {
        metrics_.CountRequest(method, model, "OK", absl::Milliseconds(1));
      }
      state_.served.push_back({model, 1});
    }
    for (int d = 0; d < 8; ++d) {
      const std::string device = absl::StrCat("cuda:", d);
      DeviceMetrics(&metrics_, device).CountChunk(DeviceWork::kInference, 1);
      state_.devices.push_back({device,
                                "cuda",
                                absl::StrCat(d),
                                absl::StrCat("GPU-", d),
                                true,
                                {{"models", 1}, {"trainers", 1}, {"allocator", 1}, {"cache", 1}}});
    }
  }
  std::string Scrape() const {
    return Serialize(*metrics_.registry()) + Serialize(StateMetrics([this] { return state_; })) +
           Serialize(ProcessMetrics());
  }

 private:
  Metrics metrics_;
  std::vector<std::unique_ptr<ModelMetrics>> models_;
  ServerState state_;
};

// In times of writing its lines. Sanitizers slow down Braid's code, but not that of the libraries.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMaxScrapeTime = 50;
#else
constexpr int kMaxScrapeTime = 5;
#endif

// Returns the least CPU time of ten calls of `work`: other processes may keep the machine busy, and
// a scrape does not wait.
template <typename Work>
absl::Duration LeastTime(Work work) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return absl::DurationFromTimespec(time);
  };
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 10; ++i) {
    const absl::Duration start = now();
    work();
    least = std::min(least, now() - start);
  }
  return least;
}

// Writes as many names and numbers as `text` has lines.
std::string WriteLines(const std::string& text) {
  std::ostringstream out;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    out << line.substr(0, line.rfind(' ')) << ' ' << 0.25 << '\n';
  }
  return out.str();
}

// A scrape of 1.7 MB takes 10 ms where writing its lines takes 3.4 ms.
TEST(StateMetricsTest, AScrapeOfALargeServerTakesFewTimesAsLongAsWritingItsLines) {
  const LargeServer server;
  const std::string text = server.Scrape();
  EXPECT_GT(text.size(), 100'000);
  const absl::Duration written = LeastTime([&] { WriteLines(text); });
  const absl::Duration scraped = LeastTime([&] { server.Scrape(); });
  EXPECT_LE(scraped, kMaxScrapeTime * written);
}

}  // namespace
}  // namespace braid

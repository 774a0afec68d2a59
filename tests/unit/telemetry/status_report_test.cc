#include "server/telemetry/status_report.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

StatusReport EmptyReport() { return {"1.2", absl::OkStatus(), absl::Seconds(90), 3}; }

TEST(StatusReportTest, DescribesTheServer) {
  StatusReport report = EmptyReport();
  report.devices.push_back({"cpu:0", "cpu", "", true, {}, 7, 40});
  report.devices[0].busy[static_cast<size_t>(Phase::kForward)] = absl::Milliseconds(1500);
  report.devices.push_back({"cuda:1", "cuda", "NVIDIA H200", false, {}, 0, 5, 9});
  ModelCounters counters = {4, 1, 32, 5, {}};
  counters.durations.resize(Metrics::DurationBounds().size() + 1);
  counters.durations[2] = 4;
  report.models.push_back({"m", {3, 7}, counters});
  report.trainers.push_back({"t", "m", true, 12, 0.5, 0.1, 64, {"cpu:0", "cuda:1"}});
  report.jobs->counts = {{"QUEUED", 2}, {"RUNNING", 1}};
  report.jobs->jobs.push_back({"j", "train", "m", "RUNNING", 50, 200, 5, 0.25, 10});

  const Json json = Json::parse(ToJson(report));
  EXPECT_EQ(json["version"], "1.2");
  EXPECT_EQ(json["ready"], true);
  EXPECT_EQ(json["uptime_seconds"], 90);
  EXPECT_EQ(json["requests_in_flight"], 3);
  EXPECT_EQ(json["devices"][0]["busy_seconds"].size(), kPhases);
  EXPECT_EQ(json["devices"][0]["busy_seconds"]["forward"], 1.5);
  EXPECT_EQ(json["devices"][0]["memory_total_bytes"], nullptr);
  EXPECT_EQ(json["devices"][1]["healthy"], false);
  EXPECT_EQ(json["devices"][1]["memory_total_bytes"], 9);
  const Json& model = json["models"][0];
  EXPECT_THAT(model["versions"], ElementsAre(3, 7));
  EXPECT_EQ(model["failures"], 1);
  EXPECT_EQ(model["queue_rows"], 5);
  EXPECT_EQ(model["durations"].size(), json["duration_bounds_seconds"].size() + 1);
  EXPECT_EQ(model["durations"][2], 4);
  EXPECT_EQ(json["trainers"][0]["failed"], true);
  EXPECT_EQ(json["trainers"][0]["loss"], 0.5);
  EXPECT_EQ(json["jobs"][0]["state"], "RUNNING");
  EXPECT_EQ(json["jobs"][0]["total_rows"], 200);
  EXPECT_EQ(json["job_counts"], (Json{{"QUEUED", 2}, {"RUNNING", 1}}));
}

TEST(StatusReportTest, UnknownAndNonFiniteNumbersAreNull) {
  StatusReport report = EmptyReport();
  report.models.push_back({"unused", {1}, {}});
  report.trainers.push_back({"new", "m"});
  report.trainers.push_back({"diverged", "m", false, 1, std::numeric_limits<double>::quiet_NaN()});
  const Json json = Json::parse(ToJson(report));
  EXPECT_EQ(json["models"][0]["durations"].size(), json["duration_bounds_seconds"].size() + 1);
  EXPECT_EQ(json["trainers"][0]["loss"], nullptr);
  EXPECT_EQ(json["trainers"][1]["loss"], nullptr);
}

TEST(StatusReportTest, SaysWhyTheServerIsNotReadyAndHasNoJobs) {
  StatusReport report = EmptyReport();
  report.readiness = absl::UnavailableError("device cuda:0 is lost");
  report.jobs = absl::FailedPreconditionError("jobs: no --data_dir");
  const Json json = Json::parse(ToJson(report));
  EXPECT_EQ(json["ready"], false);
  EXPECT_EQ(json["reason"], "device cuda:0 is lost");
  EXPECT_EQ(json["jobs"], nullptr);
  EXPECT_EQ(json["job_counts"], nullptr);
  EXPECT_EQ(json["jobs_error"], "jobs: no --data_dir");
}

TEST(StatusReportTest, EscapesNames) {
  StatusReport report = EmptyReport();
  const std::string name = "a\"b\\c\n</script>\xff";
  report.models.push_back({name, {1}, {}});
  const std::string text = ToJson(report);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_EQ(Json::parse(text)["models"][0]["name"], "a\"b\\c\n</script>\uFFFD");
}

}  // namespace
}  // namespace braid

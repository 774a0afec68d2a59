#include "server/telemetry/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::Le;

std::map<std::string, double> Read(const ProcessMetrics& metrics) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    const prometheus::ClientMetric& metric = family.metric.front();
    values[family.name] =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  return values;
}

TEST(ProcessMetricsTest, ReadsTheKernelsFiles) {
  std::map<std::string, double> values = Read(ProcessMetrics());
  EXPECT_EQ(values.size(), ProcessMetrics::Descriptions().size());
  rusage usage = {};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  const double seconds = absl::ToDoubleSeconds(absl::DurationFromTimeval(usage.ru_utime) +
                                               absl::DurationFromTimeval(usage.ru_stime));
  EXPECT_NEAR(values["process_cpu_seconds_total"], seconds, 1);
  EXPECT_THAT(values["process_resident_memory_bytes"],
              AllOf(Gt(1 << 20), Le(1024.0 * static_cast<double>(usage.ru_maxrss))));
  EXPECT_GT(values["process_virtual_memory_bytes"], values["process_resident_memory_bytes"]);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_THAT(values["process_start_time_seconds"], AllOf(Ge(now - 86400), Le(now + 1)));
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(values["process_max_fds"], static_cast<double>(limit.rlim_cur));
}

TEST(ProcessMetricsTest, CountsOpenFiles) {
  const ProcessMetrics metrics;
  const double before = Read(metrics)["process_open_fds"];
  const int copy = dup(0);
  EXPECT_EQ(Read(metrics)["process_open_fds"], before + 1);
  close(copy);
}

TEST(ProcessMetricsTest, UnreadableMetricsAreAbsent) {
  const TempDir proc;
  EXPECT_TRUE(Read(ProcessMetrics(proc.path().string())).empty());
  // A program name with separators, and too few fields.
  proc.Write("self/stat", "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 100 200\n");
  proc.Write("self/limits", "Max open files            unlimited\n");
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_THAT(Read(ProcessMetrics(proc.path().string())),
              ::testing::ElementsAre(
                  ::testing::Pair("process_cpu_seconds_total", ::testing::DoubleEq(300 / ticks))));
}

}  // namespace
}  // namespace braid

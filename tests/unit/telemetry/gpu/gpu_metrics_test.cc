#include "server/telemetry/gpu/gpu_metrics.h"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "server/telemetry/gpu/gpu_families.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFirst[] = "{gpu=\"0\",uuid=\"GPU-aa\"";
constexpr char kSecond[] = "{gpu=\"1\",uuid=\"GPU-bb\"";

// Scrape of the fake library's GPUs.
std::string Scrape(const GpuMetrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.Collect());
}

std::string Line(const std::string& name, const std::string& labels, const std::string& value) {
  return name + labels + "} " + value + "\n";
}

class GpuMetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    BRAID_ASSERT_OK_AND_ASSIGN(metrics_, GpuMetrics::Open(BRAID_FAKE_NVML));
    text_ = Scrape(*metrics_);
  }

  std::shared_ptr<GpuMetrics> metrics_;
  std::string text_;
};

TEST_F(GpuMetricsTest, NamesEachGpu) {
  EXPECT_THAT(
      text_,
      HasSubstr(Line("braid_gpu_info",
                     std::string(kFirst) + R"(,name="Fake \"X\"",driver_version="580.1")", "1")));
}

TEST_F(GpuMetricsTest, ReadingsAreInBaseUnits) {
  for (const auto& [name, labels, value] : std::vector<std::array<std::string, 3>>{
           {"braid_gpu_utilization_ratio", "", "0.75"},
           {"braid_gpu_memory_utilization_ratio", "", "0.2"},
           {"braid_gpu_memory_used_bytes", "", "100"},
           {"braid_gpu_memory_total_bytes", "", "1000"},
           {"braid_gpu_power_watts", "", "250.5"},
           {"braid_gpu_power_limit_watts", "", "700"},
           {"braid_gpu_energy_joules_total", "", "1.5"},
           {"braid_gpu_temperature_celsius", "", "41"},
           {"braid_gpu_clock_hertz", ",clock=\"sm\"", "1980000000"},
           {"braid_gpu_clock_hertz", ",clock=\"memory\"", "3201000000"},
           {"braid_gpu_throttled", ",reason=\"power_cap\"", "1"},
           {"braid_gpu_throttled", ",reason=\"hardware_thermal\"", "0"},
           {"braid_gpu_ecc_errors_total", ",type=\"corrected\"", "3"},
           {"braid_gpu_ecc_errors_total", ",type=\"uncorrected\"", "1"},
           {"braid_gpu_pcie_bytes_total", ",direction=\"sent\"", "7"},
           {"braid_gpu_pcie_bytes_total", ",direction=\"received\"", "8"},
           {"braid_gpu_nvlink_bytes_total", ",direction=\"sent\"", "7168"},
       }) {
    EXPECT_THAT(text_, HasSubstr(Line(name, kFirst + labels, value)));
  }
  EXPECT_THAT(text_, HasSubstr(Line("braid_gpu_utilization_ratio", kSecond, "0.05")));
}

TEST_F(GpuMetricsTest, AFailedSensorIsAbsentAndCounted) {
  EXPECT_THAT(text_, Not(HasSubstr(std::string("braid_gpu_power_watts") + kSecond)));
  const std::string failed = std::string(kSecond) + ",sensor=\"braid_gpu_power_watts\"";
  EXPECT_THAT(text_, HasSubstr(Line("braid_gpu_sensor_errors_total", failed, "1")));
  EXPECT_THAT(Scrape(*metrics_), HasSubstr(Line("braid_gpu_sensor_errors_total", failed, "2")));
}

TEST_F(GpuMetricsTest, AMissingSensorIsAbsentAndNotCounted) {
  EXPECT_THAT(text_, AllOf(Not(HasSubstr(std::string("braid_gpu_ecc_errors_total") + kSecond)),
                           Not(HasSubstr(std::string("braid_gpu_nvlink_bytes_total") + kSecond)),
                           Not(HasSubstr("sensor=\"braid_gpu_ecc_errors_total\""))));
}

TEST_F(GpuMetricsTest, ReportsMemoryOfMigInstances) {
  const std::string first = std::string(kFirst) + ",mig=\"0\",mig_uuid=\"MIG-cc\"";
  const std::string other = std::string(kFirst) + ",mig=\"3\",mig_uuid=\"MIG-dd\"";
  EXPECT_THAT(text_, AllOf(HasSubstr(Line("braid_gpu_mig_memory_used_bytes", first, "102")),
                           HasSubstr(Line("braid_gpu_mig_memory_used_bytes", other, "103")),
                           HasSubstr(Line("braid_gpu_mig_memory_total_bytes", first, "400")),
                           Not(HasSubstr("braid_gpu_mig_memory_used_bytes{gpu=\"1\""))));
}

TEST_F(GpuMetricsTest, FindsAGpuByUuidOrPciId) {
  const auto by_uuid = metrics_->Find("GPU-bb", "0000:3b:00.0");
  ASSERT_TRUE(by_uuid.has_value());
  EXPECT_EQ(by_uuid->gpu, "1");
  EXPECT_EQ(by_uuid->uuid, "GPU-bb");
  const auto of_instance = metrics_->Find("MIG-cc", "0000:3b:00.0");
  ASSERT_TRUE(of_instance.has_value());
  EXPECT_EQ(of_instance->gpu, "0");
  EXPECT_EQ(of_instance->uuid, "GPU-aa");
  EXPECT_FALSE(metrics_->Find("GPU-zz", "0000:99:00.0").has_value());
}

TEST_F(GpuMetricsTest, ReadsTheMemoryOfOneGpu) {
  const auto memory = metrics_->ReadMemory("GPU-aa");
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->used, 100);
  EXPECT_EQ(memory->total, 1000);
  EXPECT_FALSE(metrics_->ReadMemory("GPU-zz").has_value());
}

// All families of the table with their labels. The fake library reports an XID error.
TEST_F(GpuMetricsTest, CollectsEveryDocumentedMetric) {
  std::map<std::string, std::vector<std::string>> collected;
  for (const prometheus::MetricFamily& family : metrics_->Collect()) {
    std::vector<std::string>& labels = collected[family.name];
    for (const auto& label : family.metric.front().label) {
      labels.push_back(label.name);
    }
  }
  EXPECT_EQ(collected.size(), GpuDescriptions().size());
  for (const MetricDescription& description : GpuDescriptions()) {
    EXPECT_EQ(collected[description.name], description.labels) << description.name;
  }
}

// The fake library reports one error.
TEST(GpuXidTest, CountsXidErrors) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto metrics, GpuMetrics::Open(BRAID_FAKE_NVML));
  const std::string line =
      Line("braid_gpu_xid_errors_total", std::string(kFirst) + ",xid=\"79\"", "1");
  EXPECT_THAT(Scrape(*metrics), HasSubstr(line));
  EXPECT_THAT(Scrape(*metrics), HasSubstr(line));
}

TEST(GpuMetricsOpenTest, ReportsAMissingLibrary) {
  EXPECT_THAT(GpuMetrics::Open("libno-such-nvml.so.1"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("libno-such-nvml.so.1")));
}

}  // namespace
}  // namespace braid

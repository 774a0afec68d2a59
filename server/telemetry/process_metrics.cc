#include "server/telemetry/process_metrics.h"

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace braid {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;
using Fields = std::vector<std::string>;

// Indices of the fields in /proc/PID/stat after the program name.
constexpr size_t kUserTicks = 11;
constexpr size_t kSystemTicks = 12;
constexpr size_t kStartTicks = 19;
constexpr size_t kVirtualBytes = 20;
constexpr size_t kResidentPages = 21;

// Returns an empty string if the file cannot be read.
std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<double> Number(absl::string_view text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) ? std::optional<double>(value) : std::nullopt;
}

// Returns field `index` multiplied by `scale`.
std::optional<double> Field(const Fields& fields, size_t index, double scale) {
  const std::optional<double> value = index < fields.size() ? Number(fields[index]) : std::nullopt;
  return value ? std::optional<double>(*value * scale) : std::nullopt;
}

// Splits the part of `stat` after the program name, which may contain spaces and parentheses.
Fields StatFields(absl::string_view stat) {
  const size_t name = stat.rfind(')');
  if (name == absl::string_view::npos) {
    return {};
  }
  return absl::StrSplit(stat.substr(name + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

// Returns the first field after `key` in `text`.
std::optional<double> ValueOf(absl::string_view text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, key)) {
      const Fields fields = absl::StrSplit(rest, ' ', absl::SkipEmpty());
      return Field(fields, 0, 1);
    }
  }
  return std::nullopt;
}

std::optional<double> CountOpenFiles(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  double count = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    ++count;
  }
  return error ? std::nullopt : std::optional<double>(count);
}

std::optional<double> Sum(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::optional<double>(*a + *b) : std::nullopt;
}

}  // namespace

const std::vector<MetricDescription>& ProcessMetrics::Descriptions() {
  static const auto* const kTable = new std::vector<MetricDescription>{
      {MetricGroup::kProcess,
       "process_cpu_seconds_total",
       MetricType::Counter,
       {},
       "CPU time of the server in user space and kernel."},
      {MetricGroup::kProcess,
       "process_resident_memory_bytes",
       MetricType::Gauge,
       {},
       "Resident memory of the server."},
      {MetricGroup::kProcess,
       "process_virtual_memory_bytes",
       MetricType::Gauge,
       {},
       "Virtual memory of the server."},
      {MetricGroup::kProcess, "process_open_fds", MetricType::Gauge, {}, "Open file descriptors."},
      {MetricGroup::kProcess,
       "process_max_fds",
       MetricType::Gauge,
       {},
       "Limit of open file descriptors; absent if there is none."},
      {MetricGroup::kProcess,
       "process_start_time_seconds",
       MetricType::Gauge,
       {},
       "Unix time when the server started."},
  };
  return *kTable;
}

std::vector<MetricFamily> ProcessMetrics::Collect() const {
  const double second = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const std::string self = absl::StrCat(proc_, "/self");
  const Fields stat = StatFields(ReadAll(self + "/stat"));
  // In the order of the table.
  const std::vector<std::optional<double>> values = {
      Sum(Field(stat, kUserTicks, second), Field(stat, kSystemTicks, second)),
      Field(stat, kResidentPages, static_cast<double>(sysconf(_SC_PAGESIZE))),
      Field(stat, kVirtualBytes, 1),
      CountOpenFiles(self + "/fd"),
      ValueOf(ReadAll(self + "/limits"), "Max open files"),
      Sum(ValueOf(ReadAll(proc_ + "/stat"), "btime"), Field(stat, kStartTicks, second)),
  };
  std::vector<MetricFamily> families;
  for (size_t m = 0; m < values.size(); ++m) {
    const MetricDescription& description = Descriptions()[m];
    if (values[m]) {
      AddSeries(description, {}, *values[m], &families.emplace_back(EmptyFamily(description)));
    }
  }
  return families;
}

}  // namespace braid

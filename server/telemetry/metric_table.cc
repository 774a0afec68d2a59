#include "server/telemetry/metric_table.h"

namespace braid {

Histograms::Buckets MetricTable::Latencies() {
  Histograms::Buckets seconds = {0.00005};
  for (const double unit : {1e6, 1e5, 1e4, 1e3, 1e2}) {  // divisions are exact to the last digit
    for (const int steps : {100, 125, 160, 200, 250, 320, 400, 500, 630, 800}) {
      seconds.push_back(steps / unit);
    }
  }
  seconds.insert(seconds.end(), {10, 30, 60, 120, 300});
  return seconds;
}

Histograms::Buckets MetricTable::Rows() {
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
}

Histograms::Buckets MetricTable::Ratios() {
  return {0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75};
}

Histograms::Buckets MetricTable::JobDurations() {
  constexpr double kMinute = 60;
  constexpr double kHour = 60 * kMinute;
  constexpr double kDay = 24 * kHour;
  return {0.1,          1,        2,           5,           10,
          20,           kMinute,  2 * kMinute, 5 * kMinute, 10 * kMinute,
          20 * kMinute, kHour,    2 * kHour,   5 * kHour,   12 * kHour,
          kDay,         2 * kDay, 7 * kDay};
}

}  // namespace braid

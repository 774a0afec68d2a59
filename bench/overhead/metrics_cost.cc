// braid-bench-metrics: measures the CPU time of the metrics for a request of one row, relative to
// the request's forward pass in a bare LibTorch loop. The ratio is an upper bound of the lost
// throughput, because a request costs more than its forward pass. Prints a row of bench/RESULTS.md.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bench/common/bare_loop.h"
#include "bench/common/run_main.h"
#include "server/telemetry/device_metrics.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/model_metrics.h"

namespace braid::bench {
namespace {

constexpr int kRequests = 200'000;

double ThreadCpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

// Records all metrics of one ModelInfer request of one row in its own batch.
void RecordOne(Metrics& metrics, ModelMetrics& model, DeviceMetrics& device) {
  constexpr absl::Duration kTime = absl::Microseconds(70);
  model.AddQueuedRows(1);
  model.AddQueuedRows(-1);
  for (const Phase phase : {Phase::kCopyIn, Phase::kForward, Phase::kCopyOut}) {
    device.AddBusy(phase, kTime);
  }
  model.CountBatch(1);
  device.CountChunk(DeviceWork::kInference, 1);
  model.RecordQueued(kTime);
  metrics.CountRequest("ModelInfer", "mlp", "OK", kTime);
}

// Returns the CPU seconds per request with `threads` workers recording in parallel.
double RecordingSeconds(int threads) {
  Metrics metrics;
  ModelMetrics model(&metrics, "mlp");
  std::vector<double> seconds(static_cast<size_t>(threads));
  std::vector<std::thread> workers;
  for (size_t t = 0; t < seconds.size(); ++t) {
    workers.emplace_back([&, t] {
      DeviceMetrics device(&metrics, absl::StrCat("cpu:", t));
      const double start = ThreadCpuSeconds();
      for (int i = 0; i < kRequests; ++i) {
        RecordOne(metrics, model, device);
      }
      seconds[t] = (ThreadCpuSeconds() - start) / kRequests;
    });
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

int Main(int argc, char** argv) {
  std::string path;
  int64_t features = 784;
  int threads = 2;
  int rounds = 5;
  double seconds = 1;
  CLI::App app("Measures the CPU time of a request's metrics relative to its forward pass");
  app.add_option("--path", path, "Path of model.pt")->required();
  app.add_option("--features", features, "Elements per row")->capture_default_str();
  app.add_option("--threads", threads, "Parallel threads")->capture_default_str();
  app.add_option("--rounds", rounds)->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--seconds", seconds, "Duration of the loop per round")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  BareLoop loop(path, features);
  std::vector<double> counting;
  std::vector<double> forward;
  std::vector<double> ratios;
  for (int r = 0; r < rounds; ++r) {
    counting.push_back(RecordingSeconds(threads));
    forward.push_back(loop.ForwardCpuSeconds(/*batch=*/1, threads, absl::Seconds(seconds)));
    ratios.push_back(counting.back() / forward.back());
  }
  for (std::vector<double>* all : {&counting, &forward, &ratios}) {
    std::sort(all->begin(), all->end());
  }
  const size_t middle = ratios.size() / 2;
  std::printf("| a request of 1 row | %d | %.2f µs | %.1f µs | %.4f | %.4f to %.4f |\n", threads,
              1e6 * counting[middle], 1e6 * forward[middle], ratios[middle], ratios.front(),
              ratios.back());
  return 0;
}

}  // namespace
}  // namespace braid::bench

int main(int argc, char** argv) {
  return braid::bench::RunMain("metrics", braid::bench::Main, argc, argv);
}

// Sends inference requests to a server and prints what came of them, as one line of JSON: what
// bench/inference.py measures with where Triton's perf_analyzer cannot.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "bench/load_generator.h"
#include "bench/run_main.h"

namespace braid::bench {
namespace {

// Milliseconds, nearest rank; 0 if there is none. `sorted` is.
double Percentile(const std::vector<double>& sorted, double part) {
  if (sorted.empty()) {
    return 0;
  }
  const auto rank = static_cast<size_t>(part * static_cast<double>(sorted.size()));
  return 1000 * sorted[std::min(rank, sorted.size() - 1)];
}

std::string Latencies(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return absl::StrFormat(R"({"count":%d,"p50_ms":%.4f,"p99_ms":%.4f,"most_ms":%.4f})",
                         seconds.size(), Percentile(seconds, 0.5), Percentile(seconds, 0.99),
                         Percentile(seconds, 1));
}

// Of this process.
double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

int Main(int argc, char** argv) {
  LoadOptions options;
  double seconds = 1;
  CLI::App app("Inference requests to a server; prints one line of JSON");
  app.add_option("--server", options.server, "host:port")->capture_default_str();
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--input", options.input, "Its FP32 input")->capture_default_str();
  app.add_option("--shape", options.shape, "Of the input, rows first")->delimiter(',');
  app.add_option("--connections", options.connections)->check(CLI::Range(1, 1024));
  app.add_option("--in_flight", options.in_flight, "Closed loop")->check(CLI::Range(1, 65536));
  app.add_option("--rate", options.rate, "Open loop: requests/s; 0: closed loop");
  app.add_option("--requests", options.requests, "0: for --seconds");
  app.add_option("--seconds", seconds);
  app.add_flag("--shared_memory", options.shared_memory, "The input is in system shared memory");
  std::string ca_file;
  app.add_option("--token", options.token, "One made for the benchmark: others can read it");
  app.add_option("--ca", ca_file, "TLS: the server's authority")->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  options.time = absl::Seconds(seconds);
  if (!ca_file.empty()) {
    std::ifstream file(ca_file);
    options.ca.assign(std::istreambuf_iterator<char>(file), {});
  }

  const absl::StatusOr<LoadReport> report = RunLoad(options);
  const absl::Status status = report.ok() ? report->first_error : report.status();
  if (!status.ok()) {
    std::fprintf(stderr, "load: %s\n", status.ToString().c_str());
    return 1;
  }
  std::printf(R"({"seconds":%.6f,"cpu_seconds":%.6f,"completed":%s,"refused":%s})"
              "\n",
              report->seconds, CpuSeconds(), Latencies(report->completed).c_str(),
              Latencies(report->refused).c_str());
  return 0;
}

}  // namespace
}  // namespace braid::bench

int main(int argc, char** argv) {
  return braid::bench::RunMain("load", braid::bench::Main, argc, argv);
}

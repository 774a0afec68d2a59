// braid-bench-bare: prints the CPU seconds per row of forward passes in a bare LibTorch loop, the
// reference for the server's CPU time in bench/inference.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "bench/common/bare_loop.h"
#include "bench/common/run_main.h"

namespace {

int Main(int argc, char** argv) {
  std::string path;
  int64_t batch = 32;
  int64_t features = 784;
  int threads = 1;
  double seconds = 1;
  CLI::App app("Prints the CPU seconds per row of LibTorch's forward pass in a loop");
  app.add_option("--path", path, "Path of model.pt")->required();
  app.add_option("--batch", batch)->capture_default_str();
  app.add_option("--features", features, "Elements per row")->capture_default_str();
  app.add_option("--threads", threads, "Parallel loops")->capture_default_str();
  app.add_option("--seconds", seconds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  braid::bench::BareLoop loop(path, features);
  std::printf("%.9g\n", loop.ForwardCpuSeconds(batch, threads, absl::Seconds(seconds)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return braid::bench::RunMain("bare", Main, argc, argv); }

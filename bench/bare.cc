// CPU seconds that a forward pass costs for each row in a bare LibTorch loop: what
// bench/inference.py holds the server's against. Prints one number.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "bench/bare_loop.h"
#include "bench/run_main.h"

namespace {

int Main(int argc, char** argv) {
  std::string path;
  int64_t batch = 32;
  int64_t features = 784;
  int threads = 1;
  double seconds = 1;
  CLI::App app("CPU seconds a row of LibTorch's forward pass in a loop");
  app.add_option("--path", path, "The model's model.pt")->required();
  app.add_option("--batch", batch)->capture_default_str();
  app.add_option("--features", features, "Of a row")->capture_default_str();
  app.add_option("--threads", threads, "Loops side by side")->capture_default_str();
  app.add_option("--seconds", seconds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  braid::bench::BareLoop loop(path, features);
  std::printf("%.9g\n", loop.ForwardCpuSeconds(batch, threads, absl::Seconds(seconds)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return braid::bench::RunMain("bare", Main, argc, argv); }

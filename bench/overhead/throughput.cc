// braid-bench-throughput: measures rows per second through a running server relative to a LibTorch
// loop with the same number of threads. Both run alternately, so the ratio holds on a machine whose
// speed drifts. Started by bench/overhead/throughput.sh.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/common/bare_loop.h"
#include "bench/common/run_main.h"
#include "client/cpp/client.h"

namespace braid::bench {
namespace {

constexpr int64_t kFeatures = 784;

struct Settings {
  std::string server = "127.0.0.1:8001";
  std::string model = "mlp";
  std::string path;
  int threads = 1;
  int rounds = 5;
  double seconds = 1;
};

// Exits on an error, even if other threads are running, because a failed benchmark has no result.
void Check(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "throughput: %s\n", status.ToString().c_str());
    std::quick_exit(1);
  }
}

template <typename T>
T Must(absl::StatusOr<T> result) {
  Check(result.status());
  return *std::move(result);
}

std::vector<client::Tensor> Inputs(int64_t batch) {
  const std::vector<float> values(static_cast<size_t>(batch * kFeatures), 0.5F);
  std::vector<client::Tensor> inputs;
  inputs.push_back(client::MakeTensor<float>("x", {batch, kFeatures}, values));
  return inputs;
}

// Returns rows per second for `clients` connections, each with one request in flight.
double ServedForward(const Settings& settings, int64_t batch, int clients) {
  std::atomic<int64_t> rows{0};
  const absl::Time end = absl::Now() + absl::Seconds(settings.seconds);
  const absl::Time start = absl::Now();
  std::vector<std::thread> running;
  for (int c = 0; c < clients; ++c) {
    running.emplace_back([&] {
      const auto connection = Must(client::Client::Connect(settings.server));
      while (absl::Now() < end) {
        Must(connection->Infer(settings.model, Inputs(batch)));
        rows += batch;
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  return static_cast<double>(rows) / absl::ToDoubleSeconds(absl::Now() - start);
}

std::vector<client::Tensor> Targets(int64_t batch) {
  std::vector<int64_t> classes(static_cast<size_t>(batch));
  for (size_t i = 0; i < classes.size(); ++i) {
    classes[i] = static_cast<int64_t>(i % 10);
  }
  std::vector<client::Tensor> targets;
  targets.push_back(client::MakeTensor<int64_t>("target", {batch}, classes));
  return targets;
}

// Returns rows per second for steps sent one at a time.
double ServedStep(client::Trainer& trainer, int64_t batch, double seconds) {
  const absl::Time start = absl::Now();
  int64_t rows = 0;
  while (absl::Now() - start < absl::Seconds(seconds)) {
    Must(trainer.Step(Inputs(batch), Targets(batch)));
    rows += batch;
  }
  return static_cast<double>(rows) / absl::ToDoubleSeconds(absl::Now() - start);
}

// Returns rows per second for steps over a stream, which sends the next step during the current
// one.
double StreamedStep(client::Trainer& trainer, int64_t batch, double seconds) {
  const absl::Time start = absl::Now();
  int64_t rows = 0;
  const auto stream = Must(trainer.OpenStream());
  while (absl::Now() - start < absl::Seconds(seconds)) {
    stream->Step(Inputs(batch), Targets(batch));
    rows += batch;
  }
  Check(stream->Finish());
  return static_cast<double>(rows) / absl::ToDoubleSeconds(absl::Now() - start);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs both sides alternately and prints a table row with the median of the rounds' ratios.
template <typename Bare, typename Served>
void Compare(const Settings& settings, const std::string& what, Bare bare, Served served) {
  std::vector<double> bare_rates;
  std::vector<double> served_rates;
  std::vector<double> ratios;
  for (int round = 0; round < settings.rounds; ++round) {
    bare_rates.push_back(bare());
    served_rates.push_back(served());
    ratios.push_back(served_rates.back() / bare_rates.back());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("| %s | %d | %.0f | %.0f | %.2f | %.2f to %.2f |\n", what.c_str(), settings.threads,
              Median(bare_rates), Median(served_rates), Median(ratios), *least, *most);
  std::fflush(stdout);
}

void Run(const Settings& settings) {
  const absl::Duration time = absl::Seconds(settings.seconds);
  BareLoop loop(settings.path, kFeatures);
  for (const auto& [batch, clients] : {std::pair{1, 8}, {32, 8}, {256, 4}, {4096, 1}}) {
    const std::string what =
        absl::StrCat("forward, batch ", batch, ", ", clients, clients > 1 ? " clients" : " client");
    Compare(
        settings, what, [&, b = batch] { return loop.Forward(b, settings.threads, time); },
        [&, b = batch, c = clients] { return ServedForward(settings, b, c); });
  }
  const auto connection = Must(client::Client::Connect(settings.server));
  v1::CreateTrainerRequest request;
  request.set_model(settings.model);
  request.add_losses()->set_name("cross_entropy");
  request.mutable_optimizer()->mutable_sgd()->set_lr(0.01);
  request.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  client::Trainer trainer = Must(connection->CreateTrainer(request));
  for (const int64_t batch : {64, 256}) {
    Compare(
        settings, absl::StrCat("training step, batch ", batch),
        [&] { return loop.Step(batch, settings.threads, time); },
        [&] { return ServedStep(trainer, batch, settings.seconds); });
    Compare(
        settings, absl::StrCat("training step, batch ", batch, ", streamed"),
        [&] { return loop.Step(batch, settings.threads, time); },
        [&] { return StreamedStep(trainer, batch, settings.seconds); });
  }
  Check(trainer.Delete());
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures rows per second through a server relative to a bare LibTorch loop");
  app.add_option("--server", settings.server, "host:port")->capture_default_str();
  app.add_option("--path", settings.path, "Path of model.pt")->required();
  app.add_option("--model", settings.model, "Name of the model on the server")
      ->capture_default_str();
  app.add_option("--threads", settings.threads, "Threads of the bare loop, as many as the server's")
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "Rounds per comparison")->capture_default_str();
  app.add_option("--seconds", settings.seconds, "Duration of a measurement")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  Run(settings);
  return 0;
}

}  // namespace
}  // namespace braid::bench

int main(int argc, char** argv) {
  return braid::bench::RunMain("throughput", braid::bench::Main, argc, argv);
}

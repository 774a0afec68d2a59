// braid-server: flags → Options → Server::Create → wait for a signal → drain.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/flags.h"
#include "server/server.h"
#include "server/telemetry/log.h"

namespace {

// Blocks the signals that end the server in this thread and in all that it starts.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A file that would get too large is an error of the write, not the process's end.
  std::signal(SIGXFSZ, SIG_IGN);
  return signals;
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  const std::optional<braid::Options> options = braid::ParseFlags(argc, argv, &exit_code);
  if (!options) {
    return exit_code;
  }
#ifdef NDEBUG
  // The lock graph that Abseil keeps by default costs time at every lock; tests keep it.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  const sigset_t signals = BlockSignals();
  braid::SetLogFormat(options->log_format);
  braid::SetLogLevels(options->log_levels);

  // A signal that comes while the models are being loaded ends the process at once: there is
  // nothing to drain.
  std::atomic<bool> started = false;
  absl::Notification stop;
  std::thread([&started, &stop, signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    braid::Log(braid::LogModule::kServer).info("signal {}", signal);
    if (!started.exchange(true)) {
      braid::StopLog();
      std::_Exit(0);
    }
    stop.Notify();
  }).detach();

  const auto server = braid::Server::Create(*options);
  if (!server.ok()) {
    std::fprintf(stderr, "braid-server: %s\n", std::string(server.status().message()).c_str());
    return 2;
  }
  started = true;
  stop.WaitForNotification();
  if (!(*server)->Drain()) {
    braid::StopLog();
    std::_Exit(1);
  }
  braid::Log(braid::LogModule::kServer).info("bye");
  braid::StopLog();
  return 0;
}

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
#include "server/base/descriptor_limit.h"
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
  // So is a log whose reader is gone.
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// What signals have asked for.
struct Wishes {
  std::atomic<bool> started = false;  // there is something to drain
  absl::Notification stop;
  absl::Notification hurry;
};

spdlog::logger& ServerLog() { return braid::Log(braid::LogModule::kServer); }

[[noreturn]] void EndNow(int exit_code) {
  braid::StopLog();
  std::_Exit(exit_code);
}

// The first signal drains, the second hurries, the third ends the process. One that comes while the
// models are being loaded ends it too: there is nothing to drain.
[[noreturn]] void TakeSignals(const sigset_t& signals, Wishes* wishes) {
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (!wishes->started) {
      ServerLog().info("signal {} before the server is ready: exiting", signal);
      EndNow(0);
    } else if (!wishes->stop.HasBeenNotified()) {
      ServerLog().info("signal {}: draining (a second signal cuts the wait to one second)", signal);
      wishes->stop.Notify();
    } else if (!wishes->hurry.HasBeenNotified()) {
      ServerLog().warn(
          "signal {}: waiting one more second (a third signal ends the process at once)", signal);
      wishes->hurry.Notify();
    } else {
      ServerLog().error("signal {}: ending at once", signal);
      EndNow(1);
    }
  }
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
  braid::RaiseDescriptorLimit();
  const sigset_t signals = BlockSignals();
  braid::SetLogFormat(options->log_format);
  braid::SetLogLevels(options->log_levels);

  Wishes& wishes = *new Wishes;  // the thread that waits for signals ends with the process
  std::thread([&wishes, signals] { TakeSignals(signals, &wishes); }).detach();

  const auto server = braid::Server::Create(*options);
  if (!server.ok()) {
    std::fprintf(stderr, "braid-server: %s\n", std::string(server.status().message()).c_str());
    return 2;
  }
  wishes.started = true;
  wishes.stop.WaitForNotification();
  if (!(*server)->Drain(wishes.hurry)) {
    EndNow(1);
  }
  braid::StopLog();
  ServerLog().info("bye");
  return 0;
}

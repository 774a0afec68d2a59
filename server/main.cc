// braid-server: parses flags, creates the server, waits for a signal, drains.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/base/descriptor_limit.h"
#include "server/flags.h"
#include "server/server.h"
#include "server/telemetry/log.h"

namespace {

// Blocks termination signals in this thread and in all threads that it starts.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // Writes report errors for a file size limit and for a closed log pipe, instead of ending the
  // process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// State shared with the signal thread.
struct ShutdownState {
  std::atomic<bool> started = false;  // the server is ready, so signals drain it
  absl::Notification stop;
  absl::Notification hurry;
};

pthread_t signal_thread;

// Threads that a library started before main(), such as a profiler's, do not block the signals. The
// system may deliver a signal to one of them.
void Forward(int signal) { pthread_kill(signal_thread, signal); }

spdlog::logger& ServerLog() { return braid::Log(braid::LogModule::kServer); }

[[noreturn]] void ExitNow(int exit_code) {
  braid::StopLog();
  std::_Exit(exit_code);
}

// Handles signals: the first one drains, the second one shortens the drain, the third one exits. A
// signal before the server is ready exits, too.
[[noreturn]] void HandleSignals(const sigset_t& signals, ShutdownState* state) {
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (!state->started) {
      ServerLog().info("signal {} before the server is ready: exiting", signal);
      ExitNow(0);
    } else if (!state->stop.HasBeenNotified()) {
      ServerLog().info("signal {}: draining (a second signal cuts the wait to one second)", signal);
      state->stop.Notify();
    } else if (!state->hurry.HasBeenNotified()) {
      ServerLog().warn("signal {}: waiting one more second (a third signal exits immediately)",
                       signal);
      state->hurry.Notify();
    } else {
      ServerLog().error("signal {}: exiting immediately", signal);
      ExitNow(1);
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
  // Disables Abseil's deadlock detection, which slows down every lock. Tests keep it on.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  braid::RaiseDescriptorLimit();
  const sigset_t signals = BlockSignals();
  braid::SetLogFormat(options->log_format);
  braid::SetLogLevels(options->log_levels);
  const absl::Cleanup stop_log = [] { braid::StopLog(); };  // after the server is destroyed

  ShutdownState& state = *new ShutdownState;  // never freed: the signal thread runs until exit
  std::thread handler([&state, signals] { HandleSignals(signals, &state); });
  signal_thread = handler.native_handle();
  handler.detach();
  std::signal(SIGTERM, Forward);
  std::signal(SIGINT, Forward);

  const auto server = braid::Server::Create(*options);
  if (!server.ok()) {
    std::fprintf(stderr, "braid-server: %s\n", std::string(server.status().message()).c_str());
    return 2;
  }
  state.started = true;
  state.stop.WaitForNotification();
  if (!(*server)->Drain(state.hurry)) {
    ExitNow(1);
  }
  ServerLog().info("exited");
  return 0;
}

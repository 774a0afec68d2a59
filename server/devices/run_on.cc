#include "server/devices/run_on.h"

#include <pthread.h>

#include <exception>
#include <functional>
#include <new>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/blocking_counter.h"
#include "c10/util/Exception.h"

namespace braid {
namespace {

// Extracts the line that explains an error. In TorchScript's errors, this is the line after
// "RuntimeError: " for an operator and the last line for a `raise`; the rest is the interpreter's
// stack. In other errors, it is the first line.
absl::string_view Cause(absl::string_view message) {
  constexpr absl::string_view kRuntimeError = "RuntimeError: ";
  constexpr absl::string_view kInterpreter = "The following operation failed in the TorchScript";
  message = absl::StripAsciiWhitespace(message);
  if (const size_t at = message.rfind(kRuntimeError); at != absl::string_view::npos) {
    message = message.substr(at + kRuntimeError.size());
  } else if (absl::StartsWith(message, kInterpreter)) {
    message = message.substr(message.rfind('\n') + 1);
  }
  const absl::string_view line = *absl::StrSplit(message, '\n').begin();
  return absl::StripAsciiWhitespace(line);
}

// Recognizes out-of-memory errors that TorchScript's interpreter wraps in its own exception type.
bool IsOutOfMemory(absl::string_view message) {
  return absl::StrContains(message, "out of host memory") ||
         absl::StrContains(message, "CUDA out of memory");
}

absl::Status OutOfMemory(absl::string_view message) {
  const absl::string_view device = CurrentDeviceName();
  return absl::ResourceExhaustedError(
      absl::StrCat(device.empty() ? "host" : device, ": ", message));
}

absl::Status Failure(absl::string_view message) {
  message = Cause(message);
  return IsOutOfMemory(message) ? OutOfMemory(message) : absl::InternalError(message);
}

absl::Status FirstError(const std::vector<absl::Status>& results) {
  for (const absl::Status& result : results) {
    if (!result.ok()) {
      return result;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CatchTorch(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& error) {
    return OutOfMemory(Cause(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return Failure(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return OutOfMemory("out of host memory");
  } catch (const std::exception& error) {
    return Failure(error.what());
  }
}

absl::Status RunAndSynchronize(Worker& worker, absl::FunctionRef<absl::Status()> work) {
  absl::Status done = worker.healthy() ? CatchTorch(work) : worker.LostStatus();
  const absl::Status ended = worker.Synchronize();
  if (!worker.healthy()) {
    return worker.LostStatus();
  }
  done.Update(ended);
  return done;
}

absl::Status RunOnEach(const std::vector<Worker*>& workers, Phase phase,
                       absl::FunctionRef<absl::Status(size_t)> work) {
  return RepeatOnEach(workers, phase, /*times=*/1, work);
}

absl::Status RepeatOnEach(const std::vector<Worker*>& workers, Phase phase, int64_t times,
                          absl::FunctionRef<absl::Status(size_t)> work) {
  std::vector<absl::Status> results(workers.size());
  absl::BlockingCounter running(static_cast<int>(workers.size()));
  const std::function<void(size_t, int64_t)> post = [&](size_t i, int64_t left) {
    workers[i]->Post([&, i, left] {
      Worker& worker = *workers[i];
      results[i] =
          worker.Measure(phase, [&] { return RunAndSynchronize(worker, [&] { return work(i); }); });
      if (results[i].ok() && left > 1) {
        post(i, left - 1);
      } else {
        running.DecrementCount();
      }
    });
  };
  for (size_t i = 0; i < workers.size(); ++i) {
    post(i, times);
  }
  running.Wait();
  return FirstError(results);
}

absl::Status RunOnLoadThreads(const std::vector<Worker*>& workers,
                              absl::FunctionRef<absl::Status(size_t)> work) {
  std::vector<absl::Status> results(workers.size());
  const auto run = [&](size_t i) {
    Worker& worker = *workers[i];
    const std::string name = absl::StrCat("load ", worker.name());
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    results[i] = RunAndSynchronize(worker, [&] {
      worker.EnterForLoading();
      return work(i);
    });
  };
  // Creating a thread may throw. Threads that have started are joined anyway.
  const absl::Status started = CatchTorch([&] {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < workers.size(); ++i) {
      threads.emplace_back(run, i);
    }
    return absl::OkStatus();
  });
  return started.ok() ? FirstError(results) : started;
}

}  // namespace braid

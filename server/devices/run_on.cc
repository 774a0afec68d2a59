#include "server/devices/run_on.h"

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/blocking_counter.h"
#include "c10/util/Exception.h"

namespace braid {
namespace {

// What a person needs of a TorchScript error: its last line that says something; the rest is the
// interpreter's stack. Other errors begin with theirs.
absl::string_view Essence(absl::string_view message) {
  constexpr absl::string_view kRuntimeError = "RuntimeError: ";
  if (const size_t at = message.rfind(kRuntimeError); at != absl::string_view::npos) {
    message = message.substr(at + kRuntimeError.size());
  }
  const absl::string_view line = *absl::StrSplit(message, '\n').begin();
  return absl::StripAsciiWhitespace(line);
}

}  // namespace

absl::Status CatchTorch(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(Essence(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::InternalError(Essence(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of host memory");
  } catch (const std::exception& error) {
    return absl::InternalError(Essence(error.what()));
  }
}

absl::Status RunOnEach(const std::vector<Worker*>& workers, Phase phase,
                       absl::FunctionRef<absl::Status(size_t)> work) {
  std::vector<absl::Status> results(workers.size());
  absl::BlockingCounter running(static_cast<int>(workers.size()));
  for (size_t i = 0; i < workers.size(); ++i) {
    workers[i]->Post([&, i] {
      Worker& worker = *workers[i];
      results[i] = worker.Measure(phase, [&] {
        absl::Status done = CatchTorch([&] { return work(i); });
        done.Update(
            worker.device().Synchronize());  // also after an error: what was begun has to end
        return done;
      });
      running.DecrementCount();
    });
  }
  running.Wait();
  for (absl::Status& result : results) {
    if (!result.ok()) {
      return result;
    }
  }
  return absl::OkStatus();
}

}  // namespace braid

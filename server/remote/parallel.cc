#include "server/remote/parallel.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/background_thread.h"
#include "server/base/status.h"

namespace braid {
namespace {

constexpr size_t kThreads = 8;
constexpr absl::Duration kWatchInterval = absl::Milliseconds(200);

// Hands out indices and collects the first error. Thread-safe.
class SharedWork {
 public:
  SharedWork(size_t count, size_t threads) : count_(count), running_(threads) {}

  void Run(absl::FunctionRef<absl::Status(size_t)> work) {
    while (true) {
      size_t index = 0;
      {
        const absl::MutexLock lock(&mu_);
        if (!status_.ok() || next_ == count_) {
          --running_;
          return;
        }
        index = next_++;
      }
      Update(work(index));
    }
  }

  void Update(const absl::Status& status) {
    const absl::MutexLock lock(&mu_);
    status_.Update(status);
  }

  // Returns true when all threads have ended.
  bool Wait(absl::Duration timeout) {
    const absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(this, &SharedWork::Ended), timeout);
  }

  absl::Status status() const {
    const absl::MutexLock lock(&mu_);
    return status_;
  }

 private:
  bool Ended() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return running_ == 0; }

  const size_t count_;
  mutable absl::Mutex mu_;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  size_t running_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status InParallel(size_t count, absl::FunctionRef<absl::Status(size_t)> work,
                        absl::FunctionRef<absl::Status()> watch) {
  const size_t threads = std::min(count, kThreads);
  SharedWork shared(count, threads);
  std::vector<std::thread> workers;
  for (size_t t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      EnterBackground("objects");
      shared.Run(work);
    });
  }
  while (!shared.Wait(kWatchInterval)) {
    shared.Update(watch());
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  BRAID_RETURN_IF_ERROR(shared.status());
  return watch();
}

}  // namespace braid

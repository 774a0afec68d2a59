#include "server/decode/decode_threads.h"

#include <pthread.h>

namespace braid {

DecodeThreads::~DecodeThreads() {
  std::vector<std::thread> threads;
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void DecodeThreads::Post(int64_t parts, RunPart run, Done done) {
  auto work = std::make_shared<Work>(parts, std::move(run), std::move(done));
  const absl::MutexLock lock(&mu_);
  waiting_.push_back(std::move(work));
  while (threads_.size() < static_cast<size_t>(count_)) {
    pthread_setname_np(threads_.emplace_back([this] { Run(); }).native_handle(), "decode");
  }
}

void DecodeThreads::Run() {
  while (true) {
    std::shared_ptr<Work> work;
    int64_t part = 0;
    {
      const absl::MutexLock lock(&mu_, absl::Condition(this, &DecodeThreads::HasWork));
      if (waiting_.empty()) {
        return;
      }
      work = std::move(waiting_.front());
      waiting_.pop_front();
      part = work->next++;
      if (work->next < work->parts) {
        waiting_.push_back(work);
      }
    }
    work->run(part);
    if (work->left.fetch_sub(1) == 1) {
      work->done();
    }
  }
}

}  // namespace braid

// A named pipe without a writer in place of a file.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {

// Releases a blocked reader after a while, so that the test fails instead of hanging.
class SilentPipe {
 public:
  explicit SilentPipe(std::string path) : path_(std::move(path)) {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    helper_ = std::thread([this] { LetGo(); });
  }
  ~SilentPipe() { WasWaitedFor(); }

  // To be asked when the reader has returned.
  bool WasWaitedFor() {
    if (helper_.joinable()) {
      read_.Notify();
      helper_.join();
    }
    return waited_for_;
  }

 private:
  void LetGo() {
    if (!read_.WaitForNotificationWithTimeout(absl::Seconds(10))) {
      waited_for_ = true;
      close(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    }
  }

  const std::string path_;
  absl::Notification read_;
  bool waited_for_ = false;  // before helper_ is joined, its own
  std::thread helper_;
};

}  // namespace braid

#include "server/telemetry/log_output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <utility>

namespace braid {

bool LogOutput::IsReady(absl::Duration wait) const {
  pollfd out = {file_, POLLOUT, 0};
  return poll(&out, 1, static_cast<int>(absl::ToInt64Milliseconds(wait))) == 1;
}

size_t LogOutput::WriteSome(absl::string_view bytes) const {
  // A pipe that is ready takes so many without waiting.
  const ssize_t taken = write(file_, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
  // One that nobody will ever read takes everything.
  return taken < 0 ? bytes.size() : static_cast<size_t>(taken);
}

void LogOutput::Write(absl::string_view lines) {
  const absl::MutexLock lock(&mu_);
  bool whole = true;
  while (!lines.empty()) {
    if (!IsReady(stuck_ ? absl::ZeroDuration() : patience_)) {
      stuck_ = true;
      broken_line_ = broken_line_ || !whole;
      lost_ += std::count(lines.begin(), lines.end(), '\n');
      return;
    }
    stuck_ = false;
    if (std::exchange(broken_line_, false)) {
      WriteSome("\n");
      continue;  // which may have filled it
    }
    const size_t taken = WriteSome(lines);
    whole = taken > 0 && lines[taken - 1] == '\n';
    lines.remove_prefix(taken);
  }
}

int64_t LogOutput::TakeLost() {
  const absl::MutexLock lock(&mu_);
  return lost_ > 0 && IsReady(absl::ZeroDuration()) ? std::exchange(lost_, 0) : 0;
}

}  // namespace braid

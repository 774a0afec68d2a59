// Where the log's lines go. A server does not wait for a log that nobody reads.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

// Thread-safe.
class LogOutput {
 public:
  // `file` outlives it. `patience`: how long its reader may take nothing until lines are lost.
  LogOutput(int file, absl::Duration patience) : file_(file), patience_(patience) {}

  // Writes whole lines. Once the reader's time is up they are lost, and so are all others, at once,
  // until it reads on.
  void Write(absl::string_view lines) ABSL_LOCKS_EXCLUDED(mu_);
  // How many lines were lost, to be told now that the reader reads on; 0: none, or it does not.
  int64_t TakeLost() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool IsReady(absl::Duration wait) const;
  // What was taken of `bytes`.
  size_t WriteSome(absl::string_view bytes) const;

  const int file_;
  const absl::Duration patience_;

  absl::Mutex mu_;
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_line_ ABSL_GUARDED_BY(mu_) = false;  // the last line was not taken whole
  int64_t lost_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace braid

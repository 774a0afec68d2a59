#include "server/access/reloader.h"

#include <utility>

namespace braid {

Reloader::Reloader(std::vector<ReloadedFiles*> files, absl::Duration pause)
    : files_(std::move(files)), thread_([this, pause] { Run(pause); }) {}

Reloader::~Reloader() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void Reloader::Run(absl::Duration pause) {
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stop_), pause)) {
        return;
      }
    }
    for (ReloadedFiles* files : files_) {
      files->Look();
    }
  }
}

}  // namespace braid

#include "server/rpc/listener_watch.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/port_sockets.h"

namespace braid {

ListenerWatch::ListenerWatch(int port) : port_(port), listeners_(Listeners(port)) {}

absl::Status ListenerWatch::Look(int64_t accept_calls) {
  int64_t waiting = 0;
  for (const int listener : listeners_) {
    const std::optional<int64_t> more = WaitingConnections(listener, port_);
    if (!more) {
      return absl::UnavailableError(absl::StrCat("port ", port_, " is not listened at any more"));
    }
    waiting += *more;
  }
  const bool accepts = std::exchange(accept_calls_, accept_calls) != accept_calls;
  in_vain_ = waiting > 0 && !accepts ? in_vain_ + 1 : 0;
  return in_vain_ < kLooks
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat(waiting, " connections to port ", port_,
                                                   " wait, and nobody accepts them any more"));
}

}  // namespace braid

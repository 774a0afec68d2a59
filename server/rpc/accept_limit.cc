#include "server/rpc/accept_limit.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/base/descriptor_limit.h"
#include "server/base/port_sockets.h"

namespace braid {
namespace {

// Of the descriptors that there may be, an eighth is left to others than clients, and never more
// than this.
constexpr int64_t kMostReserved = 256;
constexpr int64_t kReservedPart = 8;

std::atomic<int> the_port = 0;  // no socket that listens has it
std::atomic<int64_t> refused = 0;
std::atomic<int64_t> accept_calls = 0;

int Accept(int listener, sockaddr* address, socklen_t* size, int flags) {
  return static_cast<int>(syscall(SYS_accept4, listener, address, size, flags));
}

void Refuse(int connection) {
  close(connection);
  ++refused;
}

// A descriptor that is open for nothing, so that there is one when there is none.
class Spare {
 public:
  void Open() ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    OpenLocked();
  }
  // Accepts a connection in the spare's place and closes it. Whether there was one.
  bool RefuseOne(int listener) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    if (descriptor_ >= 0) {
      close(descriptor_);
      descriptor_ = -1;
    }
    pollfd waiting = {.fd = listener, .events = POLLIN, .revents = 0};
    const bool any = poll(&waiting, 1, 0) == 1;  // or it could wait, if the listener is one to wait
    const int connection = any ? Accept(listener, nullptr, nullptr, SOCK_CLOEXEC) : -1;
    if (connection >= 0) {
      Refuse(connection);
    }
    OpenLocked();  // if others were faster there is none until the next time
    return connection >= 0;
  }

 private:
  void OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (descriptor_ < 0) {
      descriptor_ = eventfd(0, EFD_CLOEXEC);
    }
  }

  absl::Mutex mu_;
  int descriptor_ ABSL_GUARDED_BY(mu_) = -1;
};

// Lives as long as the process: gRPC's threads do.
Spare& TheSpare() {
  static auto* const kSpare = new Spare;
  return *kSpare;
}

// What accept4() says of a connection that came to nothing before it was accepted, and of a moment
// without memory: gRPC would take either for the listener's end.
bool IsPassing(int error) {
  switch (error) {
    case ECONNABORTED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ENOBUFS:
    case ENOMEM:
    case ENONET:
    case ENOPROTOOPT:
    case EPERM:
    case EPROTO:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

// Descriptors are given lowest first, so that the number of one tells how many there are.
bool LeavesEnough(int connection, bool limited_port) {
  return connection < DescriptorsBeforeRefusal(DescriptorLimit(), limited_port);
}

int AcceptWithinLimit(int listener, sockaddr* address, socklen_t* size, int flags) {
  const bool limited_port = LocalPort(listener) == the_port;
  if (limited_port) {
    ++accept_calls;
  }
  const socklen_t room = size == nullptr ? 0 : *size;
  // Until none waits: what is left waiting nobody would be told of again.
  while (true) {
    if (size != nullptr) {
      *size = room;
    }
    const int connection = Accept(listener, address, size, flags);
    if (connection >= 0 && LeavesEnough(connection, limited_port)) {
      return connection;
    }
    if (connection >= 0) {
      Refuse(connection);
    } else if (errno == EMFILE || errno == ENFILE) {
      if (!TheSpare().RefuseOne(listener)) {
        errno = EAGAIN;
        return -1;
      }
    } else {
      errno = IsPassing(errno) ? EAGAIN : errno;
      return -1;
    }
  }
}

}  // namespace

void LimitAccepting(int port) {
  TheSpare().Open();
  the_port = port;
}

int64_t DescriptorsBeforeRefusal(int64_t limit, bool limited_port) {
  const int64_t reserved = std::min(limit / kReservedPart, kMostReserved);
  return limit - (limited_port ? reserved : reserved / 2);
}

int64_t RefusedConnections() { return refused; }
int64_t AcceptCalls() { return accept_calls; }

}  // namespace braid

// In the place of the C library's own, which the dynamic linker finds second.
extern "C" int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  return braid::AcceptWithinLimit(listener, address, size, flags);
}

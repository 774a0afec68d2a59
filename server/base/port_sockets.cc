#include "server/base/port_sockets.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"

namespace braid {
namespace {

// Returns the port of an address, or -1 if it is not an IP address.
int PortOf(const sockaddr_storage& address) {
  switch (address.ss_family) {
    case AF_INET:
      return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    case AF_INET6:
      return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    default:
      return -1;
  }
}

// Returns the address from `get`, which is getsockname() or getpeername(); empty on an error.
std::optional<sockaddr_storage> AddressOf(int descriptor, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  return get(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? std::optional(address)
                                                                            : std::nullopt;
}

bool Listens(int descriptor) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

// Returns the local port of the socket `descriptor`, or -1 if it is not an IP socket.
int LocalPort(int descriptor) {
  const std::optional<sockaddr_storage> here = AddressOf(descriptor, getsockname);
  return here ? PortOf(*here) : -1;
}

bool Connected(int descriptor) { return AddressOf(descriptor, getpeername).has_value(); }

void ForEachDescriptor(int port, absl::FunctionRef<void(int)> visit) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error)) {
    int descriptor = -1;
    if (absl::SimpleAtoi(entry->path().filename().string(), &descriptor) &&
        LocalPort(descriptor) == port) {
      visit(descriptor);
    }
  }
}

// Works on a duplicate: if another thread closes the descriptor, its number may be reused.
void ForEachSocket(int port, absl::FunctionRef<void(int)> visit) {
  ForEachDescriptor(port, [&](int descriptor) {
    if (const int duplicate = fcntl(descriptor, F_DUPFD_CLOEXEC, 0); duplicate >= 0) {
      if (LocalPort(duplicate) == port) {
        visit(duplicate);
      }
      close(duplicate);
    }
  });
}

int64_t UndeliveredBytesOf(int descriptor) {
  int unacknowledged = 0;
  return Connected(descriptor) && ioctl(descriptor, SIOCOUTQ, &unacknowledged) == 0 ? unacknowledged
                                                                                    : 0;
}

}  // namespace

void StopListening(int port) {
  ForEachSocket(port, [](int descriptor) {
    if (Listens(descriptor)) {
      shutdown(descriptor, SHUT_RD);
    }
  });
}

int64_t UndeliveredBytes(int port) {
  int64_t bytes = 0;
  ForEachSocket(port, [&bytes](int descriptor) { bytes += UndeliveredBytesOf(descriptor); });
  return bytes;
}

void EndAllConnections(int port) {
  ForEachSocket(port, [](int descriptor) {
    if (Connected(descriptor)) {
      shutdown(descriptor, SHUT_RDWR);
    }
  });
}

}  // namespace braid

#include "server/base/port_sockets.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"

namespace braid {
namespace {

// Of an end of an IP socket; -1: it is none.
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

// The one that `get`, getsockname() or getpeername(), tells; nothing if it tells none.
std::optional<sockaddr_storage> AddressOf(int descriptor, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  return get(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? std::optional(address)
                                                                            : std::nullopt;
}

template <typename Bytes>
absl::string_view View(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(&bytes), sizeof(bytes)};
}

// An IPv4 client of an IPv6 socket has an address of either kind: of both it is IPv4's.
std::string PlainAddress(absl::string_view ip) {
  in6_addr wide = {};
  if (ip.size() == sizeof(wide)) {
    std::memcpy(&wide, ip.data(), sizeof(wide));
    if (IN6_IS_ADDR_V4MAPPED(&wide)) {
      ip.remove_prefix(sizeof(wide) - sizeof(in_addr));
    }
  }
  return std::string(ip);
}

std::string PlainAddress(const sockaddr_storage& address) {
  return PlainAddress(address.ss_family == AF_INET
                          ? View(reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                          : View(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr));
}

bool Listens(int descriptor) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
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

// A descriptor that others close meanwhile may be another socket's when it is acted on; a duplicate
// of it cannot be.
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

bool EndConnection(int port, absl::string_view peer_address, int peer_port) {
  return EndConnections(port, {{std::string(peer_address), peer_port}}) > 0;
}

int64_t EndConnections(int port, const Peers& peers) {
  Peers plain;
  for (const auto& [address, peer_port] : peers) {
    plain.emplace(PlainAddress(address), peer_port);
  }
  int64_t ended = 0;
  ForEachSocket(port, [&](int descriptor) {
    const std::optional<sockaddr_storage> peer = AddressOf(descriptor, getpeername);
    if (peer && plain.contains(std::pair(PlainAddress(*peer), PortOf(*peer)))) {
      // As opposed to shutdown(), this drops what has come and has not been read, too.
      const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
      ended +=
          connect(descriptor, &nobody, sizeof(nobody)) == 0 || shutdown(descriptor, SHUT_RDWR) == 0
              ? 1
              : 0;
    }
  });
  return ended;
}

int LocalPort(int descriptor) {
  const std::optional<sockaddr_storage> here = AddressOf(descriptor, getsockname);
  return here ? PortOf(*here) : -1;
}

std::vector<int> Listeners(int port) {
  std::vector<int> listeners;
  ForEachDescriptor(port, [&listeners](int descriptor) {
    if (Listens(descriptor)) {
      listeners.push_back(descriptor);
    }
  });
  return listeners;
}

std::optional<int64_t> WaitingConnections(int descriptor, int port) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (LocalPort(descriptor) != port || !Listens(descriptor) ||
      getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
    return std::nullopt;
  }
  return info.tcpi_unacked;  // which is that, of a socket that listens
}

}  // namespace braid

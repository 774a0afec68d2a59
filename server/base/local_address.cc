#include "server/base/local_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"

namespace braid {
namespace {

// Returns true if a socket can be bound to the address, at any port.
bool CanBind(const addrinfo& address) {
  const int descriptor = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    return false;
  }
  const bool bound = bind(descriptor, address.ai_addr, address.ai_addrlen) == 0;
  close(descriptor);
  return bound;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Returns all addresses of `host`, or nullptr.
Addresses Resolve(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), "0", &hints, &found);
  return {error == 0 ? found : nullptr, &freeaddrinfo};
}

bool IsLoopbackAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  if (address.sa_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) ||
           (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
  }
  return false;
}

}  // namespace

absl::Status CheckLocalAddress(const std::string& host) {
  const Addresses addresses = Resolve(host);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (CanBind(*address)) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", host, "' is not an address of this machine (expected one, such as 127.0.0.1)"));
}

bool IsLoopback(const std::string& host) {
  const Addresses addresses = Resolve(host);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (!IsLoopbackAddress(*address->ai_addr)) {
      return false;
    }
  }
  return addresses != nullptr;
}

}  // namespace braid

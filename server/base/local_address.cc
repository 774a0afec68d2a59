#include "server/base/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"

namespace braid {
namespace {

// Whether a socket can be bound there, to any port.
bool CanBind(const addrinfo& address) {
  const int descriptor = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    return false;
  }
  const bool bound = bind(descriptor, address.ai_addr, address.ai_addrlen) == 0;
  close(descriptor);
  return bound;
}

}  // namespace

absl::Status CheckLocalAddress(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), "0", &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(error == 0 ? found : nullptr,
                                                                     &freeaddrinfo);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (CanBind(*address)) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", host, "' is no address of this machine; expected one, such as 127.0.0.1"));
}

}  // namespace braid

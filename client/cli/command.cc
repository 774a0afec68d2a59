#include "client/cli/command.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/table.h"

namespace braid::cli {

int Fail(const absl::Status& status) {
  std::cerr << "braid: "
            << Printable(absl::StrCat(status.message(), " (",
                                      absl::StatusCodeToString(status.code()), ")"))
            << std::endl;
  return kFailed;
}

int BadUsage(const absl::Status& status) {
  std::cerr << "braid: " << Printable(status.message()) << std::endl;
  return kBadUsage;
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(const GlobalOptions& global) {
  client::ClientOptions options;
  options.security = global.security;
  if (global.timeout > 0) {
    options.timeout = absl::Seconds(global.timeout);
    options.connect_timeout = std::min(options.connect_timeout, options.timeout);
  }
  return client::Client::Connect(global.server, options);
}

void PrintJson(const nlohmann::ordered_json& json) {
  // Bytes that are no UTF-8 are replaced: names came over the network.
  std::cout << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

}  // namespace braid::cli

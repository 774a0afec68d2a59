#include "server/rpc/status.h"

#include <array>
#include <optional>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

// Status, details and violation each carry the message in headers, percent-encoded. gRPC limits
// headers to 8 KiB.
constexpr size_t kMaxMessageBytes = 1024;

std::string Shorten(absl::string_view message) {
  const absl::string_view excerpt = Excerpt(message, kMaxMessageBytes);
  return absl::StrCat(excerpt, excerpt.size() < message.size() ? "…" : "");
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  // Both enumerations have the same numbers.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message = Shorten(status.message());
  const std::optional<std::string> field = InvalidFieldOf(status);
  if (!field) {
    return {code, message};
  }
  google::rpc::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field(*field);
  violation->set_description(message);
  google::rpc::Status details;
  details.set_code(static_cast<int>(code));
  details.set_message(message);
  details.add_details()->PackFrom(bad_request);
  return {code, message, details.SerializeAsString()};
}

absl::string_view CodeName(grpc::StatusCode code) {
  static const auto* const kNames = [] {
    auto* all = new std::array<std::string, 17>;
    for (size_t c = 0; c < all->size(); ++c) {
      (*all)[c] = absl::StatusCodeToString(static_cast<absl::StatusCode>(c));
    }
    return all;
  }();
  const auto index = static_cast<size_t>(code);
  return index < kNames->size() ? absl::string_view((*kNames)[index]) : "UNKNOWN";
}

}  // namespace braid

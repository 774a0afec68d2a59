// What the readers of config.pbtxt's parts share: a setting is obeyed or refused, never ignored.
#pragma once

#include <set>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace braid {

// UNIMPLEMENTED for a field that is set to something and not among `known`, naming it behind
// `where` ("input[0]."). A field of a message type counts only if something is set in it: an empty
// one, and one that says the default, ask for nothing.
absl::Status RefuseUnknown(const google::protobuf::Message& message,
                           const std::set<absl::string_view>& known, absl::string_view where);

// What RefuseUnknown() says of the setting `name`.
absl::Status NotImplemented(absl::string_view name);

}  // namespace braid

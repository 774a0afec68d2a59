#include "server/models/config/config_fields.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace braid {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The first field in `message`, at any depth, that is set; "" if there is none.
std::string FirstSetting(const Message& message) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    if (field->is_repeated() || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return field->name();
    }
    const std::string inner = FirstSetting(message.GetReflection()->GetMessage(message, field));
    if (!inner.empty()) {
      return absl::StrCat(field->name(), ".", inner);
    }
  }
  return "";
}

}  // namespace

absl::Status NotImplemented(absl::string_view name) {
  return absl::UnimplementedError(
      absl::StrCat(name, " is not implemented: remove it from config.pbtxt"));
}

absl::Status RefuseUnknown(const Message& message, const std::set<absl::string_view>& known,
                           absl::string_view where) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    if (known.find(field->name()) != known.end()) {
      continue;
    }
    if (field->is_repeated() || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return NotImplemented(absl::StrCat(where, field->name()));
    }
    // Which of two schedulers is meant is a setting, though there be nothing in it.
    const std::string inner = FirstSetting(message.GetReflection()->GetMessage(message, field));
    if (!inner.empty()) {
      return NotImplemented(absl::StrCat(where, field->name(), ".", inner));
    }
    if (field->containing_oneof() != nullptr) {
      return NotImplemented(absl::StrCat(where, field->name()));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid

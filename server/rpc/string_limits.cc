#include "server/rpc/string_limits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/parameter.h"

namespace braid {
namespace {

using google::protobuf::FieldDescriptor;

bool TooLong(const std::string& text) { return text.size() > kLongestString; }

absl::Status Refused(absl::string_view field, const std::string& text) {
  return InvalidField(
      field, absl::StrCat("has ", text.size(), " bytes; expected at most ", kLongestString));
}

absl::Status CheckParameters(const Parameters& parameters, absl::string_view field) {
  for (const auto& [name, parameter] : parameters) {
    if (TooLong(name)) {
      return Refused(ParameterField(field, Excerpt(name)), name);
    }
    if (TooLong(parameter.string_param())) {
      return Refused(ParameterField(field, Excerpt(name)), parameter.string_param());
    }
  }
  return absl::OkStatus();
}

// Of inputs or outputs.
template <typename Tensors>
absl::Status CheckTensors(const Tensors& tensors, absl::string_view field) {
  for (int i = 0; i < tensors.size(); ++i) {
    if (TooLong(tensors[i].name())) {
      return Refused(absl::StrCat(field, "[", i, "].name"), tensors[i].name());
    }
    if (!tensors[i].parameters().empty()) {
      BRAID_RETURN_IF_ERROR(
          CheckParameters(tensors[i].parameters(), absl::StrCat(field, "[", i, "]")));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckField(const google::protobuf::Message& request, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *request.GetReflection();
  std::string scratch;
  if (!field.is_repeated()) {
    const std::string& text = reflection.GetStringReference(request, &field, &scratch);
    return TooLong(text) ? Refused(field.name(), text) : absl::OkStatus();
  }
  for (int i = 0; i < reflection.FieldSize(request, &field); ++i) {
    const std::string& text = reflection.GetRepeatedStringReference(request, &field, i, &scratch);
    if (TooLong(text)) {
      return Refused(absl::StrCat(field.name(), "[", i, "]"), text);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStrings(const google::protobuf::Message& request) {
  const google::protobuf::Descriptor& type = *request.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->type() == FieldDescriptor::TYPE_STRING) {
      BRAID_RETURN_IF_ERROR(CheckField(request, *type.field(i)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStrings(const inference::ModelInferRequest& request) {
  BRAID_RETURN_IF_ERROR(CheckStrings(static_cast<const google::protobuf::Message&>(request)));
  BRAID_RETURN_IF_ERROR(CheckParameters(request.parameters(), ""));
  BRAID_RETURN_IF_ERROR(CheckTensors(request.inputs(), "inputs"));
  return CheckTensors(request.outputs(), "outputs");
}

}  // namespace braid

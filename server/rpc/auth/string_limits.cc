#include "server/rpc/auth/string_limits.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "braid/v1/data.pb.h"
#include "braid/v1/training.pb.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/inference/parameter.h"

namespace braid {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool TooLong(const std::string& text) { return text.size() > kMaxStringBytes; }

absl::Status TooLongError(absl::string_view field, const std::string& text) {
  return InvalidField(field,
                      absl::StrCat(text.size(), " bytes (expected at most ", kMaxStringBytes, ")"));
}

absl::Status TooManyError(absl::string_view field, size_t entries) {
  return InvalidField(field,
                      absl::StrCat(entries, " entries (expected at most ", kMaxEntries, ")"));
}

absl::Status CheckParameters(const Parameters& parameters, absl::string_view field) {
  if (parameters.size() > kMaxEntries) {
    return TooManyError(absl::StrCat(field, field.empty() ? "" : ".", "parameters"),
                        parameters.size());
  }
  for (const auto& [name, parameter] : parameters) {
    if (TooLong(name)) {
      return TooLongError(ParameterField(field, Excerpt(name)), name);
    }
    if (TooLong(parameter.string_param())) {
      return TooLongError(ParameterField(field, Excerpt(name)), parameter.string_param());
    }
  }
  return absl::OkStatus();
}

// Checks inputs or outputs.
template <typename Tensors>
absl::Status CheckTensors(const Tensors& tensors, absl::string_view field) {
  for (int i = 0; i < tensors.size(); ++i) {
    if (TooLong(tensors[i].name())) {
      return TooLongError(absl::StrCat(field, "[", i, "].name"), tensors[i].name());
    }
    if constexpr (requires { tensors[i].datatype(); }) {
      if (TooLong(tensors[i].datatype())) {
        return TooLongError(absl::StrCat(field, "[", i, "].datatype"), tensors[i].datatype());
      }
    }
    if (!tensors[i].parameters().empty()) {
      BRAID_RETURN_IF_ERROR(
          CheckParameters(tensors[i].parameters(), absl::StrCat(field, "[", i, "]")));
    }
  }
  return absl::OkStatus();
}

// True if the number of entries is checked elsewhere.
bool IsBoundedElsewhere(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ||
         field.message_type() == braid::v1::Tensor::descriptor() ||
         field.message_type() == braid::v1::DatasetFile::descriptor();
}

absl::Status CheckMessage(const Message& message, const std::string& prefix);

// Checks an entry of a map. All maps in requests have string keys.
absl::Status CheckEntry(const Message& entry, const std::string& map) {
  const Reflection& reflection = *entry.GetReflection();
  const FieldDescriptor& value = *entry.GetDescriptor()->map_value();
  const std::string name = reflection.GetString(entry, entry.GetDescriptor()->map_key());
  const std::string path = absl::StrCat(map, ".", Excerpt(name));
  if (TooLong(name)) {
    return TooLongError(path, name);
  }
  if (value.message_type() != nullptr) {
    return CheckMessage(reflection.GetMessage(entry, &value), path + ".");
  }
  if (value.type() != FieldDescriptor::TYPE_STRING) {
    return absl::OkStatus();
  }
  const std::string text = reflection.GetString(entry, &value);
  return TooLong(text) ? TooLongError(path, text) : absl::OkStatus();
}

absl::Status CheckRepeated(const Message& message, const FieldDescriptor& field,
                           const std::string& name) {
  const Reflection& reflection = *message.GetReflection();
  const int count = reflection.FieldSize(message, &field);
  if (count > kMaxEntries && !IsBoundedElsewhere(field)) {
    return TooManyError(name, static_cast<size_t>(count));
  }
  std::string scratch;
  for (int i = 0; i < count; ++i) {
    if (field.is_map()) {
      BRAID_RETURN_IF_ERROR(CheckEntry(reflection.GetRepeatedMessage(message, &field, i), name));
    } else if (field.message_type() != nullptr) {
      BRAID_RETURN_IF_ERROR(CheckMessage(reflection.GetRepeatedMessage(message, &field, i),
                                         absl::StrCat(name, "[", i, "].")));
    } else if (field.type() == FieldDescriptor::TYPE_STRING) {
      const std::string& text = reflection.GetRepeatedStringReference(message, &field, i, &scratch);
      if (TooLong(text)) {
        return TooLongError(absl::StrCat(name, "[", i, "]"), text);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckField(const Message& message, const FieldDescriptor& field,
                        const std::string& prefix) {
  const Reflection& reflection = *message.GetReflection();
  if (field.is_repeated()) {
    return CheckRepeated(message, field, absl::StrCat(prefix, field.name()));
  }
  if (field.message_type() != nullptr) {
    return reflection.HasField(message, &field)
               ? CheckMessage(reflection.GetMessage(message, &field),
                              absl::StrCat(prefix, field.name(), "."))
               : absl::OkStatus();
  }
  if (field.type() != FieldDescriptor::TYPE_STRING) {
    return absl::OkStatus();
  }
  std::string scratch;
  const std::string& text = reflection.GetStringReference(message, &field, &scratch);
  return TooLong(text) ? TooLongError(absl::StrCat(prefix, field.name()), text) : absl::OkStatus();
}

// prefix: of field names in errors, for example "losses[0]."
absl::Status CheckMessage(const Message& message, const std::string& prefix) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  if (&type == inference::ModelRepositoryParameter::descriptor()) {
    return absl::OkStatus();  // a whole configuration
  }
  for (int i = 0; i < type.field_count(); ++i) {
    BRAID_RETURN_IF_ERROR(CheckField(message, *type.field(i), prefix));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStrings(const Message& request) { return CheckMessage(request, ""); }

absl::Status CheckStrings(const inference::ModelInferRequest& request) {
  for (const auto& [field, text] : {std::pair("model_name", &request.model_name()),
                                    {"model_version", &request.model_version()},
                                    {"id", &request.id()}}) {
    if (TooLong(*text)) {
      return TooLongError(field, *text);
    }
  }
  BRAID_RETURN_IF_ERROR(CheckParameters(request.parameters(), ""));
  BRAID_RETURN_IF_ERROR(CheckTensors(request.inputs(), "inputs"));
  return CheckTensors(request.outputs(), "outputs");
}

}  // namespace braid

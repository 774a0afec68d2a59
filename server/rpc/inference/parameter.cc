#include "server/rpc/inference/parameter.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

using inference::InferParameter;

std::string Describe(const InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return parameter.bool_param() ? "true" : "false";
    case InferParameter::kInt64Param:
      return absl::StrCat(parameter.int64_param());
    case InferParameter::kUint64Param:
      return absl::StrCat(parameter.uint64_param());
    case InferParameter::kDoubleParam:
      return absl::StrCat("the double ", parameter.double_param());
    case InferParameter::kStringParam:
      return absl::StrCat("the string '", Excerpt(parameter.string_param()), "'");
    case InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return "empty";
}

absl::Status WrongType(const InferParameter& parameter, absl::string_view field,
                       absl::string_view expected) {
  return InvalidField(field,
                      absl::StrCat("is ", Describe(parameter), " (expected ", expected, ")"));
}

}  // namespace

const InferParameter* FindParameter(const Parameters& parameters, absl::string_view name) {
  const auto found = parameters.find(std::string(name));
  return found == parameters.end() ? nullptr : &found->second;
}

absl::StatusOr<int64_t> ReadInteger(const InferParameter& parameter, absl::string_view field) {
  constexpr uint64_t kMaxInteger = std::numeric_limits<int64_t>::max();
  if (parameter.has_int64_param()) {
    return parameter.int64_param();
  }
  if (parameter.has_uint64_param() && parameter.uint64_param() <= kMaxInteger) {
    return static_cast<int64_t>(parameter.uint64_param());
  }
  return WrongType(parameter, field, "an integer from -2^63 to 2^63 - 1");
}

absl::StatusOr<bool> ReadBool(const InferParameter& parameter, absl::string_view field) {
  if (parameter.has_bool_param()) {
    return parameter.bool_param();
  }
  return WrongType(parameter, field, "true or false");
}

absl::StatusOr<std::string> ReadString(const InferParameter& parameter, absl::string_view field) {
  if (parameter.has_string_param()) {
    return parameter.string_param();
  }
  return WrongType(parameter, field, "a string");
}

absl::StatusOr<double> ReadNumber(const InferParameter& parameter, absl::string_view field) {
  constexpr int64_t kExact = int64_t{1} << std::numeric_limits<double>::digits;
  if (parameter.has_double_param()) {
    return parameter.double_param();
  }
  if (parameter.has_int64_param() || parameter.has_uint64_param()) {
    BRAID_ASSIGN_OR_RETURN(const int64_t integer, ReadInteger(parameter, field));
    if (integer >= -kExact && integer <= kExact) {
      return static_cast<double>(integer);
    }
  }
  return WrongType(parameter, field, "a double, or an integer that a double represents exactly");
}

absl::StatusOr<int64_t> ReadIntegerOr(const Parameters& parameters, absl::string_view field,
                                      absl::string_view name, int64_t otherwise) {
  const InferParameter* parameter = FindParameter(parameters, name);
  return parameter == nullptr ? otherwise : ReadInteger(*parameter, ParameterField(field, name));
}

absl::StatusOr<bool> ReadBoolOr(const Parameters& parameters, absl::string_view field,
                                absl::string_view name, bool otherwise) {
  const InferParameter* parameter = FindParameter(parameters, name);
  return parameter == nullptr ? otherwise : ReadBool(*parameter, ParameterField(field, name));
}

std::string ParameterField(absl::string_view field, absl::string_view name) {
  return absl::StrCat(field, field.empty() ? "" : ".", "parameters.", name);
}

}  // namespace braid

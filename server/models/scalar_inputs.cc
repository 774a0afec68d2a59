#include "server/models/scalar_inputs.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {

std::string DescribeScalar(const TensorSpec& spec) {
  const absl::string_view type = DataTypeName(spec.type);
  if (!spec.default_value) {
    return std::string(type);
  }
  if (std::holds_alternative<std::monostate>(*spec.default_value)) {
    return absl::StrCat(type, ", default None");
  }
  if (const bool* flag = std::get_if<bool>(&*spec.default_value)) {
    return absl::StrCat(type, ", default ", *flag ? "true" : "false");
  }
  const auto* integer = std::get_if<int64_t>(&*spec.default_value);
  return integer != nullptr
             ? absl::StrCat(type, ", default ", *integer)
             : absl::StrCat(type, ", default ", std::get<double>(*spec.default_value));
}

absl::Status CheckScalars(const ModelConfig& config) {
  for (const auto& [name, text] : config.scalars) {
    const std::string field = absl::StrCat("parameters[\"scalar.", Excerpt(name), "\"]");
    const auto input =
        std::find_if(config.inputs.begin(), config.inputs.end(),
                     [&](const TensorSpec& spec) { return spec.scalar && spec.name == name; });
    if (input == config.inputs.end()) {
      return InvalidField(field, absl::StrCat("the model has no scalar argument '", Excerpt(name),
                                              "' (remove the parameter)"));
    }
    if (const std::string own = DescribeScalar(*input); own != text) {
      return InvalidField(field, absl::StrCat("'", Excerpt(text), "' does not match the model's '",
                                              own, "' (correct or remove the parameter)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid

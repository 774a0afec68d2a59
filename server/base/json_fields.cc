#include "server/base/json_fields.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {

absl::Status JsonField::Error(absl::string_view what) const {
  return absl::FailedPreconditionError(where_.empty() ? std::string(what)
                                                      : absl::StrCat(where_, ": ", what));
}

absl::StatusOr<JsonField> JsonField::Get(const char* name) const {
  if (!value_->is_object()) {
    return Error("expected an object");
  }
  const auto found = value_->find(name);
  if (found == value_->end()) {
    return Error(absl::StrCat("has no \"", name, "\""));
  }
  return JsonField(*found, where_.empty() ? name : absl::StrCat(where_, ".", name));
}

absl::StatusOr<std::string> JsonField::OnlyKey() const {
  if (!value_->is_object() || value_->size() != 1) {
    return Error("expected an object of one entry");
  }
  return value_->begin().key();
}

std::vector<std::string> JsonField::Keys() const {
  std::vector<std::string> keys;
  for (auto entry = value_->begin(); value_->is_object() && entry != value_->end(); ++entry) {
    keys.push_back(entry.key());
  }
  return keys;
}

absl::StatusOr<std::vector<JsonField>> JsonField::Items() const {
  if (!value_->is_array()) {
    return Error("expected a list");
  }
  std::vector<JsonField> items;
  for (size_t i = 0; i < value_->size(); ++i) {
    items.emplace_back((*value_)[i], absl::StrCat(where_, "[", i, "]"));
  }
  return items;
}

absl::StatusOr<std::string> JsonField::String() const {
  if (!value_->is_string()) {
    return Error("expected a string");
  }
  return value_->get<std::string>();
}

absl::StatusOr<std::vector<std::string>> JsonField::Strings() const {
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, Items());
  std::vector<std::string> strings;
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(strings.emplace_back(), item.String());
  }
  return strings;
}

absl::StatusOr<int64_t> JsonField::Integer() const {
  if (!value_->is_number_integer()) {
    return Error("expected an integer");
  }
  return value_->get<int64_t>();
}

absl::StatusOr<bool> JsonField::Boolean() const {
  if (!value_->is_boolean()) {
    return Error("expected true or false");
  }
  return value_->get<bool>();
}

absl::StatusOr<double> JsonField::Number() const {
  double number = 0;
  if (value_->is_number()) {
    return value_->get<double>();
  }
  if (value_->is_string() && absl::SimpleAtod(value_->get<std::string>(), &number)) {
    return number;
  }
  return Error("expected a number");
}

}  // namespace braid

// Reading JSON that somebody else wrote, with errors that say where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace braid {

// A value and where it stands, as in "parts[0].path". Both outlive what they were made from only as
// long as the document does. All errors are FAILED_PRECONDITION.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string where)
      : value_(&value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  // Of an object.
  bool Has(const char* name) const { return value_->is_object() && value_->contains(name); }
  absl::StatusOr<JsonField> Get(const char* name) const;
  // Of an object of one entry: that one's name.
  absl::StatusOr<std::string> OnlyKey() const;
  // Keys of an object; empty for anything else.
  std::vector<std::string> Keys() const;
  // Of a list.
  absl::StatusOr<std::vector<JsonField>> Items() const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<std::vector<std::string>> Strings() const;
  absl::StatusOr<int64_t> Integer() const;
  absl::StatusOr<bool> Boolean() const;
  // A number, or what torch.export writes for one that JSON does not have: "Infinity".
  absl::StatusOr<double> Number() const;
  bool is_string() const { return value_->is_string(); }
  bool is_null() const { return value_->is_null(); }

  // "<where>: <what>".
  absl::Status Error(absl::string_view what) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace braid

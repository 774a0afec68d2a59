// Reader of external JSON whose errors name the field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace braid {

// JSON value and its path, for example "parts[0].path". Refers to the document, which must outlive
// it. All errors are FAILED_PRECONDITION.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string where)
      : value_(&value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  // Members of an object.
  bool Has(const char* name) const { return value_->is_object() && value_->contains(name); }
  absl::StatusOr<JsonField> Get(const char* name) const;
  // Returns the only key of an object with one entry.
  absl::StatusOr<std::string> OnlyKey() const;
  // Returns the keys of an object; empty for other values.
  std::vector<std::string> Keys() const;
  // Returns the elements of a list.
  absl::StatusOr<std::vector<JsonField>> Items() const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<std::vector<std::string>> Strings() const;
  absl::StatusOr<int64_t> Integer() const;
  absl::StatusOr<bool> Boolean() const;
  // Accepts a number, or torch.export's text for a number that JSON lacks, such as "Infinity".
  absl::StatusOr<double> Number() const;
  bool is_string() const { return value_->is_string(); }
  bool is_null() const { return value_->is_null(); }

  // Returns the error "<path>: <what>".
  absl::Status Error(absl::string_view what) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace braid

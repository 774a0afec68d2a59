#include "server/storage/safetensors_json.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/text.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDimensions = 64;

struct TypeName {
  DataType type;
  absl::string_view name;
};

// In DataType's order.
constexpr std::array<TypeName, 13> kTypeNames = {{
    {DataType::kBool, "BOOL"},
    {DataType::kUint8, "U8"},
    {DataType::kUint16, "U16"},
    {DataType::kUint32, "U32"},
    {DataType::kUint64, "U64"},
    {DataType::kInt8, "I8"},
    {DataType::kInt16, "I16"},
    {DataType::kInt32, "I32"},
    {DataType::kInt64, "I64"},
    {DataType::kFp16, "F16"},
    {DataType::kBf16, "BF16"},
    {DataType::kFp32, "F32"},
    {DataType::kFp64, "F64"},
}};

std::optional<DataType> TypeOf(absl::string_view name) {
  for (const TypeName& row : kTypeNames) {
    if (row.name == name) {
      return row.type;
    }
  }
  return std::nullopt;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(Excerpt(text)), "'");
}

// Takes the events of the parser, and ends the parsing at the first that does not belong there: a
// header can be long, and is not to be built before it is refused.
class Handler final : public Json::json_sax_t {
 public:
  SafetensorsHeader TakeHeader() { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool /*value*/) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t /*value*/) override {
    return Unexpected("a negative number");
  }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return Unexpected("a fraction");
  }
  bool binary(binary_t& /*value*/) override { return Unexpected("bytes"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) {
      return Unexpected("a number");
    }
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) {
      return Refuse("a number is too large");
    }
    if (numbers_.size() == kMaxDimensions) {
      return Refuse(absl::StrCat("there are more than ", kMaxDimensions, " numbers"));
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") {
      return Unexpected("a string");
    }
    const std::optional<DataType> type = TypeOf(value);
    if (!type) {
      return Refuse(absl::StrCat(Quoted(value), " is no known type; expected BOOL, U8, U16, U32, ",
                                 "U64, I8, I16, I32, I64, F16, BF16, F32, F64"));
    }
    header_.entries.back().type = *type;
    return true;
  }

  bool start_object(size_t /*size*/) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == kSafetensorsMetadata) {
      place_ = Place::kMetadata;
      keys_.clear();
    } else if (place_ == Place::kTop) {
      place_ = Place::kTensor;
      keys_.clear();
      header_.entries.emplace_back().name = key_;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::kTensor && value != "dtype" && value != "shape" &&
        value != "data_offsets") {
      return Refuse(absl::StrCat("unexpected key ", Quoted(value)));
    }
    std::set<std::string>& known = place_ == Place::kTop ? names_ : keys_;
    if (!known.insert(value).second) {
      return Refuse(absl::StrCat(Quoted(value), " comes twice"));
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor && keys_.size() != 3) {
      return Refuse("expected a dtype, a shape and data_offsets");
    }
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t /*size*/) override {
    if (place_ != Place::kTensor || key_ == "dtype") {
      return Unexpected("an array");
    }
    place_ = Place::kNumbers;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    SafetensorsEntry& entry = header_.entries.back();
    if (key_ == "shape") {
      entry.shape = numbers_;
    } else if (numbers_.size() == 2) {
      entry.begin = static_cast<size_t>(numbers_[0]);
      entry.end = static_cast<size_t>(numbers_[1]);
    } else {
      return Refuse(absl::StrCat(numbers_.size(), " data_offsets; expected 2"));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    error_ = absl::StrCat("header: is no JSON from byte ", position);
    return false;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kNumbers };

  bool Unexpected(absl::string_view what) {
    return Refuse(absl::StrCat(what, " is not expected there"));
  }

  bool Refuse(absl::string_view what) {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kNumbers;
    error_ = absl::StrCat(in_tensor ? Quoted(header_.entries.back().name) : "header", ": ", what);
    return false;
  }

  Place place_ = Place::kStart;
  std::set<std::string> names_;
  // Of the object within.
  std::set<std::string> keys_;
  std::string key_;
  std::vector<int64_t> numbers_;
  SafetensorsHeader header_;
  std::string error_;
};

}  // namespace

absl::string_view SafetensorsTypeName(DataType type) {
  return kTypeNames[static_cast<size_t>(type)].name;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsJson(absl::string_view text) {
  // The parser would take it for the end.
  if (absl::StrContains(text, '\0')) {
    return absl::DataLossError("header: is no JSON: it has a zero byte");
  }
  Handler handler;
  if (!Json::sax_parse(text, &handler)) {
    return absl::DataLossError(handler.error());
  }
  return handler.TakeHeader();
}

}  // namespace braid

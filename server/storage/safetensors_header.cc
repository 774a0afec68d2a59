#include "server/storage/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/names.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr char kMetadataKey[] = "__metadata__";

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(Excerpt(text)), "'");
}

constexpr size_t kMaxDimensions = 64;

struct TypeName {
  DataType type;
  absl::string_view name;
};

// In the order of DataType.
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

// SAX handler that stops the parser at the first unexpected token, so that an invalid header of
// many megabytes is not built first.
class Handler final : public Json::json_sax_t {
 public:
  SafetensorsHeader TakeHeader() { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool /*value*/) override { return Unexpected("boolean"); }
  bool number_integer(number_integer_t /*value*/) override { return Unexpected("negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return Unexpected("fraction");
  }
  bool binary(binary_t& /*value*/) override { return Unexpected("bytes"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) {
      return Unexpected("number");
    }
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) {
      return Refuse("number too large");
    }
    if (numbers_.size() == kMaxDimensions) {
      return Refuse(absl::StrCat("more than ", kMaxDimensions, " numbers"));
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
      return Unexpected("string");
    }
    const std::optional<DataType> type = TypeOf(value);
    if (!type) {
      return Refuse(absl::StrCat("unknown dtype ", Quoted(value), " (expected BOOL, U8, U16, U32, ",
                                 "U64, I8, I16, I32, I64, F16, BF16, F32 or F64)"));
    }
    header_.entries.back().type = *type;
    return true;
  }

  bool start_object(size_t /*size*/) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == kMetadataKey) {
      place_ = Place::kMetadata;
      keys_.clear();
    } else if (place_ == Place::kTop) {
      place_ = Place::kTensor;
      keys_.clear();
      header_.entries.emplace_back().name = key_;
    } else {
      return Unexpected("object");
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
      return Refuse(absl::StrCat("duplicate key ", Quoted(value)));
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
      return Unexpected("array");
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
      return Refuse(absl::StrCat(numbers_.size(), " data_offsets (expected 2)"));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    error_ = absl::StrCat("header: invalid JSON at byte ", position);
    return false;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kNumbers };

  bool Unexpected(absl::string_view what) { return Refuse(absl::StrCat("unexpected ", what)); }

  bool Refuse(absl::string_view what) {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kNumbers;
    error_ = absl::StrCat(in_tensor ? Quoted(header_.entries.back().name) : "header", ": ", what);
    return false;
  }

  Place place_ = Place::kStart;
  std::set<std::string> names_;
  // Keys of the current inner object.
  std::set<std::string> keys_;
  std::string key_;
  std::vector<int64_t> numbers_;
  SafetensorsHeader header_;
  std::string error_;
};

absl::string_view TypeNameOf(DataType type) { return kTypeNames[static_cast<size_t>(type)].name; }

absl::StatusOr<SafetensorsHeader> ParseJson(absl::string_view text) {
  // The parser takes a zero byte for the end.
  if (absl::StrContains(text, '\0')) {
    return absl::DataLossError("header: invalid JSON (zero byte)");
  }
  Handler handler;
  if (!Json::sax_parse(text, &handler)) {
    return absl::DataLossError(handler.error());
  }
  return handler.TakeHeader();
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status CheckBytes(const SafetensorsEntry& entry, size_t data_bytes) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return absl::DataLossError(absl::StrCat(Quoted(entry.name), ": data_offsets [", entry.begin,
                                            ", ", entry.end, "] of ", data_bytes,
                                            " bytes of data"));
  }
  const std::optional<size_t> expected = BytesOf(entry.type, entry.shape);
  if (expected != entry.end - entry.begin) {
    return absl::DataLossError(
        absl::StrCat(Quoted(entry.name), ": ", entry.end - entry.begin, " bytes (expected ",
                     expected ? absl::StrCat(*expected) : "an impossible number", " for ",
                     TypeNameOf(entry.type), " ", ShapeString(entry.shape), ")"));
  }
  return absl::OkStatus();
}

// Requires `entries` in the order of their bytes.
absl::Status CheckLayout(const std::vector<SafetensorsEntry>& entries, size_t data_bytes) {
  size_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    BRAID_RETURN_IF_ERROR(CheckBytes(entry, data_bytes));
    if (entry.begin != end) {
      return absl::DataLossError(absl::StrCat(Quoted(entry.name), ": starts at byte ", entry.begin,
                                              " of the data (expected ", end,
                                              ", the end of the previous tensor)"));
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("tensors end at byte ", end, " of the data (expected ", data_bytes, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SafetensorsHeaderText(const SafetensorsHeader& header) {
  Json json = Json::object();
  for (const SafetensorsEntry& entry : header.entries) {
    if (!IsUtf8(entry.name) || entry.name == kMetadataKey || json.contains(entry.name)) {
      return absl::InvalidArgumentError(absl::StrCat("invalid tensor name '",
                                                     absl::CHexEscape(entry.name),
                                                     "' (not UTF-8, duplicate or reserved)"));
    }
    json[entry.name] = {{"dtype", std::string(TypeNameOf(entry.type))},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  for (const auto& [key, value] : header.metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata '", absl::CHexEscape(key), "': not UTF-8"));
    }
  }
  if (!header.metadata.empty()) {
    json[kMetadataKey] = header.metadata;
  }
  return Dump(json);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text,
                                                         size_t data_bytes) {
  if (!absl::StartsWith(text, "{")) {
    return absl::DataLossError("header: does not start with '{'");
  }
  BRAID_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseJson(text));
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  BRAID_RETURN_IF_ERROR(CheckLayout(header.entries, data_bytes));
  return header;
}

}  // namespace braid

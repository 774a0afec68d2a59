#include "server/storage/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/names.h"
#include "server/storage/safetensors_json.h"

namespace braid {
namespace {

using Json = nlohmann::json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(Excerpt(text)), "'");
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
        absl::StrCat(Quoted(entry.name), ": has ", entry.end - entry.begin, " bytes; expected ",
                     expected ? absl::StrCat(*expected) : "an impossible number", " for ",
                     SafetensorsTypeName(entry.type), " ", ShapeString(entry.shape)));
  }
  return absl::OkStatus();
}

// `entries` in the order of their bytes.
absl::Status CheckLayout(const std::vector<SafetensorsEntry>& entries, size_t data_bytes) {
  size_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    BRAID_RETURN_IF_ERROR(CheckBytes(entry, data_bytes));
    if (entry.begin != end) {
      return absl::DataLossError(absl::StrCat(Quoted(entry.name), ": begins at byte ", entry.begin,
                                              " of the data; expected ", end,
                                              ", where the one before ends"));
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("the tensors end at byte ", end, " of the data; expected ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SafetensorsHeaderText(const SafetensorsHeader& header) {
  Json json = Json::object();
  for (const SafetensorsEntry& entry : header.entries) {
    if (!IsUtf8(entry.name) || entry.name == kSafetensorsMetadata || json.contains(entry.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", absl::CHexEscape(entry.name),
                       "' is no tensor's name: it is no UTF-8, comes twice, or is reserved"));
    }
    json[entry.name] = {{"dtype", std::string(SafetensorsTypeName(entry.type))},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  for (const auto& [key, value] : header.metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the metadata '", absl::CHexEscape(key), "' are no UTF-8"));
    }
  }
  if (!header.metadata.empty()) {
    json[kSafetensorsMetadata] = header.metadata;
  }
  return Dump(json);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text,
                                                         size_t data_bytes) {
  if (!absl::StartsWith(text, "{")) {
    return absl::DataLossError("header: does not begin with '{'");
  }
  BRAID_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsJson(text));
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  BRAID_RETURN_IF_ERROR(CheckLayout(header.entries, data_bytes));
  return header;
}

}  // namespace braid

#include "server/storage/manifest.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/checksum.h"
#include "server/storage/names.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kEnd = "\n}";
constexpr absl::string_view kChecksum = ",\n  \"checksum\": \"";

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("damaged: ", what));
}

std::string DumpObject(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

absl::Status CheckVersion(const Json& json) {
  const auto version = json.find("format_version");
  if (version == json.end() || !version->is_number_integer() || version->get<int64_t>() < 1) {
    return Damaged("no \"format_version\"");
  }
  if (version->get<int64_t>() > kManifestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("format_version ", version->get<int64_t>(),
                     " is newer than this server (expected at most ", kManifestVersion, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckChecksum(absl::string_view text) {
  const size_t at = text.rfind(kChecksum);
  if (at == absl::string_view::npos) {
    return Damaged("no checksum at its end");
  }
  const std::string expected =
      absl::StrCat(text.substr(0, at), kChecksum, ChecksumOf(text.substr(0, at)), "\"", kEnd, "\n");
  return text == expected ? absl::OkStatus() : Damaged("checksum mismatch");
}

absl::Status ReadFiles(const Json& json, Manifest* manifest) {
  for (const auto& [name, file] : json.items()) {
    const auto bytes = file.find("bytes");
    const auto checksum = file.find("checksum");
    if (!IsPlainName(name) || bytes == file.end() || !bytes->is_number_unsigned() ||
        checksum == file.end() || !checksum->is_string()) {
      return Damaged("invalid \"files\"");
    }
    manifest->files[name] = {bytes->get<int64_t>(), checksum->get<std::string>()};
  }
  return absl::OkStatus();
}

absl::Status ReadNumbers(const Json& json, Manifest* manifest) {
  for (const auto& [name, number] : json.items()) {
    if (!number.is_number_integer()) {
      return Damaged("invalid \"numbers\"");
    }
    manifest->numbers[name] = number.get<int64_t>();
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ReadFields(const Json& json) {
  for (const char* name : {"files", "numbers", "state"}) {
    if (!json.contains(name) || !json[name].is_object()) {
      return Damaged(absl::StrCat("no \"", name, "\""));
    }
  }
  for (const char* name : {"kind", "created"}) {
    if (!json.contains(name) || !json[name].is_string()) {
      return Damaged(absl::StrCat("no \"", name, "\""));
    }
  }
  Manifest manifest;
  manifest.kind = json["kind"].get<std::string>();
  manifest.state = DumpObject(json["state"], -1);
  if (!absl::ParseTime(absl::RFC3339_full, json["created"].get<std::string>(), &manifest.created,
                       nullptr)) {
    return Damaged("invalid \"created\"");
  }
  BRAID_RETURN_IF_ERROR(ReadNumbers(json["numbers"], &manifest));
  BRAID_RETURN_IF_ERROR(ReadFiles(json["files"], &manifest));
  return manifest;
}

}  // namespace

absl::StatusOr<std::string> ManifestText(const Manifest& manifest) {
  Json json = {
      {"format_version", kManifestVersion},
      {"kind", manifest.kind},
      {"created", absl::FormatTime(absl::RFC3339_full, manifest.created, absl::UTCTimeZone())},
      {"numbers", Json::object()},
      {"files", Json::object()},
      {"state", Json::parse(manifest.state, nullptr, false)}};
  if (!json["state"].is_object()) {
    return absl::InvalidArgumentError("state: not a JSON object");
  }
  for (const auto& [name, number] : manifest.numbers) {
    json["numbers"][name] = number;
  }
  for (const auto& [name, file] : manifest.files) {
    json["files"][name] = {{"bytes", file.bytes}, {"checksum", file.checksum}};
  }
  const std::string text = DumpObject(json, 2);
  const absl::string_view body = absl::string_view(text).substr(0, text.size() - kEnd.size());
  return absl::StrCat(body, kChecksum, ChecksumOf(body), "\"", kEnd, "\n");
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return Damaged("not a JSON object");
  }
  // Checked first, because later versions may have another checksum.
  BRAID_RETURN_IF_ERROR(CheckVersion(json));
  BRAID_RETURN_IF_ERROR(CheckChecksum(text));
  return ReadFields(json);
}

}  // namespace braid

#include "server/datasets/manifest.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/names.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxNameBytes = 255;

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(Excerpt(text)), "'");
}

bool HasControlCharacter(absl::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

bool IsFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= kMaxNameBytes;
}

absl::Status CheckPath(absl::string_view path, absl::string_view field) {
  if (HasControlCharacter(path) || !IsUtf8(path)) {
    return InvalidField(field,
                        absl::StrCat(Quoted(path), " (expected UTF-8 without control characters)"));
  }
  for (const absl::string_view name : absl::StrSplit(path, '/')) {
    if (!IsFileName(name)) {
      return InvalidField(field, absl::StrCat(Quoted(path),
                                              " (expected a path in the dataset without empty "
                                              "names, '.' and '..', and names of at most ",
                                              kMaxNameBytes, " bytes)"));
    }
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT if two files have the same path, or a file has the path of a folder.
absl::Status CheckDistinct(const std::vector<DatasetFile>& files) {
  std::set<absl::string_view> paths;
  for (size_t i = 0; i < files.size(); ++i) {
    if (!paths.insert(files[i].path).second) {
      return InvalidField(absl::StrCat("files[", i, "].path"),
                          absl::StrCat(Quoted(files[i].path), " is listed twice"));
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const absl::string_view path = files[i].path;
    for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
      if (paths.contains(path.substr(0, slash))) {
        return InvalidField(absl::StrCat("files[", i, "].path"),
                            absl::StrCat(Quoted(path), " is in the file ",
                                         Quoted(path.substr(0, slash)), " (expected a folder)"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t DatasetManifest::bytes() const {
  int64_t sum = 0;
  for (const DatasetFile& file : files) {
    sum += file.bytes;
  }
  return sum;
}

absl::Status CheckDatasetName(absl::string_view name) {
  if (IsPlainName(name) && absl::ascii_isalnum(static_cast<unsigned char>(name.front()))) {
    return absl::OkStatus();
  }
  return InvalidField(
      "dataset", absl::StrCat("invalid name ", Quoted(name),
                              " (expected 1 to 128 letters, digits, '_', '-' and '.', starting "
                              "with a letter or digit)"));
}

absl::Status CheckManifest(const DatasetManifest& manifest) {
  BRAID_RETURN_IF_ERROR(CheckDatasetName(manifest.dataset));
  const std::vector<DatasetFile>& files = manifest.files;
  if (files.empty() || files.size() > kMaxDatasetFiles) {
    return InvalidField(
        "files", absl::StrCat(files.size(), " files (expected 1 to ", kMaxDatasetFiles, ")"));
  }
  int64_t left = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string field = absl::StrCat("files[", i, "]");
    // Only a dataset of one file has an empty path.
    if (!manifest.is_file()) {
      BRAID_RETURN_IF_ERROR(CheckPath(files[i].path, absl::StrCat(field, ".path")));
    }
    if (files[i].bytes < 0 || files[i].bytes > left) {
      return InvalidField(
          absl::StrCat(field, ".bytes"),
          absl::StrCat(files[i].bytes, " (expected at least 0, and less than 2^63 in all)"));
    }
    left -= files[i].bytes;
    if (files[i].bytes == 0 && files[i].sha256 != Sha256("")) {
      return InvalidField(absl::StrCat(field, ".sha256"),
                          absl::StrCat(Sha256Hex(files[i].sha256), " of an empty file (expected ",
                                       Sha256Hex(Sha256("")), ")"));
    }
  }
  return CheckDistinct(files);
}

std::string UploadIdOf(const DatasetManifest& manifest) {
  Sha256Hasher hasher;
  hasher.Begin();
  hasher.Add(absl::StrCat(manifest.dataset, "\n"));
  for (const DatasetFile& file : manifest.files) {
    hasher.Add(absl::StrCat(Sha256Hex(file.sha256), " ", file.bytes, " ", file.path, "\n"));
  }
  return Sha256Hex(hasher.End());
}

std::string WriteStoredUpload(const StoredUpload& upload) {
  Json files = Json::array();
  for (const DatasetFile& file : upload.manifest.files) {
    files.push_back(Json::array({file.path, file.bytes, Sha256Hex(file.sha256)}));
  }
  return Json({{"dataset", upload.manifest.dataset},
               {"overwrite", upload.overwrite},
               {"token", upload.token},
               {"files", std::move(files)}})
      .dump();
}

absl::StatusOr<StoredUpload> ReadStoredUpload(absl::string_view text) {
  try {
    const Json json = Json::parse(text);
    StoredUpload upload;
    upload.manifest.dataset = json.at("dataset").get<std::string>();
    upload.overwrite = json.at("overwrite").get<bool>();
    upload.token = json.value("token", "");  // earlier versions wrote none
    for (const Json& entry : json.at("files")) {
      const auto sha256 = ParseSha256(entry.at(2).get<std::string>());
      if (!sha256) {
        return absl::DataLossError("the stored upload has an invalid checksum");
      }
      upload.manifest.files.push_back(
          {entry.at(0).get<std::string>(), entry.at(1).get<int64_t>(), *sha256});
    }
    BRAID_RETURN_IF_ERROR(CheckManifest(upload.manifest));
    return upload;
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat("the stored upload is damaged: ", error.what()));
  }
}

}  // namespace braid

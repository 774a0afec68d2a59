#include "server/storage/versions/version_upload.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/byte_sink.h"
#include "server/base/random_id.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"
#include "server/storage/model_files.h"

namespace braid {
namespace {

constexpr std::array kNames = {kTorchScriptFile, kPackageFile, kWeightsFile};
constexpr int64_t kCopyBytes = int64_t{1} << 20;

absl::Status CopyFile(const std::string& path, ByteSink* sink) {
  BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  std::string piece;
  for (int64_t offset = 0; offset < file.bytes(); offset += kCopyBytes) {
    piece.resize(static_cast<size_t>(std::min(kCopyBytes, file.bytes() - offset)));
    BRAID_RETURN_IF_ERROR(file.Read(offset, piece.data(), piece.size()));
    BRAID_RETURN_IF_ERROR(sink->Write(piece));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<VersionUpload>> VersionUpload::Create(const std::string& parent) {
  std::unique_ptr<VersionUpload> upload(new VersionUpload(absl::StrCat(parent, "/", RandomId())));
  BRAID_RETURN_IF_ERROR(MakeDirectories(upload->directory_));
  return upload;
}

VersionUpload::~VersionUpload() {
  files_.clear();
  RemoveTree(directory_).IgnoreError();  // Leftovers are removed at the next start.
}

std::string VersionUpload::PathOf(const std::string& file) const {
  return absl::StrCat(directory_, "/", file);
}

absl::Status VersionUpload::Append(const std::string& file, absl::string_view data) {
  auto found = files_.find(file);
  if (found == files_.end()) {
    if (std::find(kNames.begin(), kNames.end(), file) == kNames.end()) {
      return InvalidField("file",
                          absl::StrCat("unexpected name '", absl::Utf8SafeCHexEscape(Excerpt(file)),
                                       "' (expected one of ", absl::StrJoin(kNames, ", "), ")"));
    }
    BRAID_ASSIGN_OR_RETURN(FileSink sink, FileSink::Create(PathOf(file)));
    found = files_.emplace(file, std::move(sink)).first;
  }
  return found->second.Write(data);
}

absl::StatusOr<std::vector<NewFile>> VersionUpload::Finish() {
  if (files_.contains(kTorchScriptFile) == files_.contains(kPackageFile)) {
    return InvalidField("file",
                        absl::StrCat(files_.contains(kPackageFile) ? "two models" : "no model",
                                     " (expected ", kTorchScriptFile, " or ", kPackageFile, ")"));
  }
  if (files_.contains(kTorchScriptFile) && files_.contains(kWeightsFile)) {
    return InvalidField(
        "file",
        absl::StrCat("'", kWeightsFile, "' with '", kTorchScriptFile,
                     "', which contains its weights (expected it only with ", kPackageFile, ")"));
  }
  std::vector<NewFile> files;
  for (auto& [name, sink] : files_) {
    BRAID_RETURN_IF_ERROR(sink.Finish());
    files.push_back({name, [path = PathOf(name)](ByteSink* to) { return CopyFile(path, to); }});
  }
  return files;
}

}  // namespace braid

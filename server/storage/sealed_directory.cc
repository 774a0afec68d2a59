#include "server/storage/sealed_directory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/checksum.h"
#include "server/storage/file_error.h"
#include "server/storage/file_sink.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"
#include "server/storage/names.h"
#include "server/storage/staging.h"

namespace braid {
namespace {

constexpr int64_t kMaxManifest = int64_t{256} << 20;
constexpr int64_t kPiece = int64_t{1} << 20;

std::string PathIn(const std::string& directory, absl::string_view file) {
  return absl::StrCat(directory, "/", file);
}

absl::StatusOr<StoredFile> WriteOne(const std::string& path, const NewFile& file) {
  BRAID_ASSIGN_OR_RETURN(FileSink sink, FileSink::Create(path));
  BRAID_RETURN_IF_ERROR(file.write(&sink));
  BRAID_RETURN_IF_ERROR(sink.Finish());
  return StoredFile{sink.bytes(), sink.checksum()};
}

absl::Status WriteAll(const std::string& directory, const std::vector<NewFile>& files,
                      Manifest* manifest) {
  for (const NewFile& file : files) {
    if (!IsPlainName(file.name) || file.name == kManifestName ||
        manifest->files.contains(file.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid or duplicate file name '", absl::CHexEscape(file.name), "'"));
    }
    BRAID_ASSIGN_OR_RETURN(manifest->files[file.name],
                           WriteOne(PathIn(directory, file.name), file));
  }
  BRAID_ASSIGN_OR_RETURN(std::string text, ManifestText(*manifest));
  return WriteOne(PathIn(directory, kManifestName), FileOf(kManifestName, std::move(text)))
      .status();
}

// Reports a missing file as DATA_LOSS.
absl::StatusOr<InputFile> OpenStored(const std::string& path) {
  absl::StatusOr<InputFile> file = InputFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(absl::StrCat("'", path, "': missing"));
  }
  return file;
}

absl::Status CheckSize(const std::string& path, const StoredFile& expected) {
  BRAID_ASSIGN_OR_RETURN(const InputFile file, OpenStored(path));
  if (file.bytes() != expected.bytes) {
    return absl::DataLossError(
        absl::StrCat("'", path, "': ", file.bytes(), " bytes (expected ", expected.bytes, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckContent(const std::string& path, const StoredFile& expected) {
  BRAID_RETURN_IF_ERROR(CheckSize(path, expected));
  BRAID_ASSIGN_OR_RETURN(const InputFile file, OpenStored(path));
  Checksum checksum;
  std::string piece;
  for (int64_t offset = 0; offset < expected.bytes; offset += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, expected.bytes - offset)));
    BRAID_RETURN_IF_ERROR(file.Read(offset, piece.data(), piece.size()));
    checksum.Add(piece);
  }
  if (checksum.Hex() != expected.checksum) {
    return absl::DataLossError(absl::StrCat("'", path, "': checksum ", checksum.Hex(),
                                            " (expected ", expected.checksum, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

NewFile FileOf(std::string name, std::string bytes) {
  return {std::move(name),
          [bytes = std::move(bytes)](ByteSink* sink) { return sink->Write(bytes); }};
}

absl::StatusOr<Manifest> WriteSealedDirectory(const std::string& parent, const std::string& name,
                                              Manifest manifest,
                                              const std::vector<NewFile>& files) {
  BRAID_ASSIGN_OR_RETURN(const std::string staged, Stage(parent, name));
  manifest.files.clear();
  absl::Status status = WriteAll(staged, files, &manifest);
  if (status.ok()) {
    status = PutInPlace(parent, name);
  }
  if (!status.ok()) {
    Unstage(parent, name);
    return status;
  }
  return manifest;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& directory, absl::string_view kind) {
  const std::string path = PathIn(directory, kManifestName);
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxManifest);
  if (absl::IsNotFound(text.status())) {
    return absl::DataLossError(absl::StrCat("'", path, "': missing"));
  }
  BRAID_RETURN_IF_ERROR(text.status());
  absl::StatusOr<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) {
    return InFile(path, manifest.status());
  }
  if (manifest->kind != kind) {
    return absl::DataLossError(absl::StrCat(
        "'", path, "': kind '", absl::CHexEscape(manifest->kind), "' (expected '", kind, "')"));
  }
  for (const auto& [name, file] : manifest->files) {
    BRAID_RETURN_IF_ERROR(CheckSize(PathIn(directory, name), file));
  }
  return manifest;
}

absl::Status ReplaceManifest(const std::string& directory, const Manifest& manifest) {
  BRAID_ASSIGN_OR_RETURN(const std::string text, ManifestText(manifest));
  return WriteFileDurably(PathIn(directory, kManifestName), text);
}

absl::Status CheckContents(const std::string& directory, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    BRAID_RETURN_IF_ERROR(CheckContent(PathIn(directory, name), file));
  }
  return absl::OkStatus();
}

}  // namespace braid

#include "server/storage/sealed_directory.h"

#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"
#include "server/storage/names.h"
#include "server/storage/staging.h"

namespace braid {
namespace {

constexpr int64_t kMaxManifest = int64_t{256} << 20;

std::string PathIn(const std::string& directory, absl::string_view file) {
  return absl::StrCat(directory, "/", file);
}

absl::Status CheckName(absl::string_view name, const Manifest& manifest) {
  if (!IsPlainName(name) || name == kManifestName || manifest.files.contains(std::string(name))) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid or duplicate file name '", absl::CHexEscape(name), "'"));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const std::string& directory, const std::vector<NewFile>& files,
                      const std::vector<NamedSharedFile>& shared, Manifest* manifest) {
  for (const NewFile& file : files) {
    BRAID_RETURN_IF_ERROR(CheckName(file.name, *manifest));
    BRAID_ASSIGN_OR_RETURN(manifest->files[file.name],
                           StoreFile(PathIn(directory, file.name), file));
  }
  for (const NamedSharedFile& link : shared) {
    BRAID_RETURN_IF_ERROR(CheckName(link.name, *manifest));
    BRAID_RETURN_IF_ERROR(link.file->LinkTo(PathIn(directory, link.name)));
    manifest->files[link.name] = link.file->stored();
  }
  BRAID_ASSIGN_OR_RETURN(std::string text, ManifestText(*manifest));
  return StoreFile(PathIn(directory, kManifestName), FileOf(kManifestName, std::move(text)))
      .status();
}

}  // namespace

NewFile FileOf(std::string name, std::string bytes) {
  return {std::move(name),
          [bytes = std::move(bytes)](ByteSink* sink) { return sink->Write(bytes); }};
}

absl::StatusOr<Manifest> WriteSealedDirectory(const std::string& parent, const std::string& name,
                                              Manifest manifest, const std::vector<NewFile>& files,
                                              const std::vector<NamedSharedFile>& shared) {
  BRAID_ASSIGN_OR_RETURN(const std::string staged, Stage(parent, name));
  manifest.files.clear();
  absl::Status status = WriteAll(staged, files, shared, &manifest);
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
    BRAID_RETURN_IF_ERROR(CheckStoredSize(PathIn(directory, name), file));
  }
  return manifest;
}

absl::Status ReplaceManifest(const std::string& directory, const Manifest& manifest) {
  BRAID_ASSIGN_OR_RETURN(const std::string text, ManifestText(manifest));
  return WriteFileDurably(PathIn(directory, kManifestName), text);
}

absl::Status CheckContents(const std::string& directory, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    BRAID_RETURN_IF_ERROR(CheckStoredContent(PathIn(directory, name), file));
  }
  return absl::OkStatus();
}

}  // namespace braid

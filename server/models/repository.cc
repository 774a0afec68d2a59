#include "server/models/repository.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/model_files.h"
#include "server/storage/names.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

RepositoryEntry Scan(const fs::path& folder) {
  RepositoryEntry entry;
  entry.name = folder.filename();
  entry.folder = folder;
  std::error_code error;
  if (fs::is_regular_file(folder / "config.pbtxt", error)) {
    entry.config_path = folder / "config.pbtxt";
  }
  for (const fs::directory_entry& child : fs::directory_iterator(folder, error)) {
    int64_t version = 0;
    const std::string name = child.path().filename();
    if (child.is_directory(error) && absl::SimpleAtoi(name, &version) && version > 0 &&
        name == absl::StrCat(version)) {
      entry.versions.push_back({version, child.path()});
    }
  }
  std::sort(entry.versions.begin(), entry.versions.end(),
            [](const auto& a, const auto& b) { return a.version < b.version; });
  return entry;
}

// Adds a line for each file in `folder`, recursively.
void AddFiles(const fs::path& folder, std::vector<std::string>* lines) {
  std::error_code error;
  fs::recursive_directory_iterator file(folder, error);
  for (; !error && file != fs::end(file); file.increment(error)) {
    std::error_code gone;  // A file that is deleted during the scan is no error.
    if (file->is_regular_file(gone)) {
      const auto time = file->last_write_time(gone).time_since_epoch().count();
      lines->push_back(absl::StrCat(file->path().string(), " ", file->file_size(gone), " ", time));
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<RepositoryEntry>> ScanRepository(const std::string& directory) {
  std::error_code error;
  std::vector<RepositoryEntry> entries;
  fs::directory_iterator children(directory, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat("'", directory, "': ", error.message()));
  }
  for (const fs::directory_entry& child : children) {
    const std::string name = child.path().filename();
    if (!child.is_directory(error) || name.front() == '.') {
      continue;
    }
    if (IsFolderName(name)) {
      entries.push_back(Scan(child.path()));
    } else {
      Log(LogModule::kModels)
          .error("'{}': folder skipped (its name is not UTF-8)", absl::CHexEscape(name));
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

absl::StatusOr<RepositoryEntry> ScanModel(const std::string& directory, const std::string& name) {
  if (!IsFolderName(name)) {
    return InvalidField("model_name",
                        absl::StrCat("invalid name '", Excerpt(name),
                                     "' (expected the name of a model in the repository)"));
  }
  const fs::path folder = fs::path(directory) / name;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("model '", Excerpt(name), "' is not in the repository"));
  }
  return Scan(folder);
}

absl::StatusOr<std::string> FindModelFile(const RepositoryEntry::Version& version,
                                          const std::string& filename) {
  const std::vector<std::string> names =
      filename.empty() ? std::vector<std::string>{kTorchScriptFile, kPackageFile}
                       : std::vector<std::string>{filename};
  for (const std::string& name : names) {
    std::error_code error;  // A package may also be a folder.
    if (const fs::path path = fs::path(version.folder) / name; fs::exists(path, error)) {
      return path.string();
    }
  }
  return absl::NotFoundError(
      absl::StrCat("version ", version.version, " has no ", absl::StrJoin(names, " or ")));
}

std::vector<std::string> ModelFiles(const std::string& path) {
  std::vector<std::string> files = {path};
  std::error_code error;
  if (const fs::path weights = WeightsBeside(path); fs::exists(weights, error)) {
    files.push_back(weights);
  }
  return files;
}

std::string ModelFingerprint(const RepositoryEntry& entry) {
  std::vector<std::string> lines;
  AddFiles(entry.folder, &lines);
  for (const RepositoryEntry::Version& version : entry.versions) {
    lines.push_back(version.folder);
    std::error_code error;
    if (fs::is_symlink(version.folder, error)) {
      AddFiles(version.folder, &lines);
    }
  }
  std::sort(lines.begin(), lines.end());
  return absl::StrJoin(lines, "\n");
}

}  // namespace braid

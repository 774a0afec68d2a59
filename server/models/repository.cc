#include "server/models/repository.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

RepositoryEntry ScanModel(const fs::path& folder) {
  RepositoryEntry entry;
  entry.name = folder.filename();
  std::error_code error;
  if (fs::is_regular_file(folder / "config.pbtxt", error)) {
    entry.config_path = folder / "config.pbtxt";
  }
  for (const fs::directory_entry& child : fs::directory_iterator(folder, error)) {
    int64_t version = 0;
    const std::string name = child.path().filename();
    if (child.is_directory(error) && absl::SimpleAtoi(name, &version) && version > entry.version &&
        name == absl::StrCat(version)) {
      entry.version = version;
      entry.model_path = child.path() / "model.pt";
    }
  }
  if (entry.version != 0 && !fs::exists(entry.model_path, error)) {
    const fs::path package = entry.model_path + "2";  // model.pt2
    entry.model_path = fs::exists(package, error) ? package.string() : entry.model_path;
  }
  if (entry.version == 0) {
    entry.status = absl::NotFoundError(
        "there is no version folder: expected <version>/model.pt, the "
        "version a number from 1");
  } else if (!fs::exists(entry.model_path, error)) {
    entry.status = absl::NotFoundError(
        absl::StrCat("version ", entry.version, " has neither model.pt nor model.pt2"));
  }
  return entry;
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
    if (child.is_directory(error) && name.front() != '.') {
      entries.push_back(ScanModel(child.path()));
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

}  // namespace braid

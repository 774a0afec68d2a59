#include "server/remote/repository_mirror.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Returns what is replaced as a whole: "model/2" for the file "model/2/model.pt2" of a version,
// else the file itself.
std::string UnitOf(const std::string& name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, absl::MaxSplits('/', 2));
  const bool version =
      parts.size() == 3 &&
      std::all_of(parts[1].begin(), parts[1].end(), [](char c) { return absl::ascii_isdigit(c); });
  return version ? absl::StrCat(parts[0], "/", parts[1]) : name;
}

// Returns the files below `root`, which may be a file, relative to `base`.
std::set<std::string> FilesBelow(const fs::path& root, const fs::path& base) {
  std::set<std::string> files;
  std::error_code error;
  if (fs::is_regular_file(root, error)) {
    files.insert(root.lexically_relative(base));
  }
  for (fs::recursive_directory_iterator file(root, error), end; !error && file != end;
       file.increment(error)) {
    if (!file->is_directory(error)) {
      files.insert(file->path().lexically_relative(base));
    }
  }
  return files;
}

// Removes the directories below `root` that have no file.
absl::Status RemoveEmptyDirectories(const fs::path& root) {
  std::error_code error;
  std::vector<fs::path> directories;
  for (fs::recursive_directory_iterator child(root, error), end; !error && child != end;
       child.increment(error)) {
    if (child->is_directory(error)) {
      directories.push_back(child->path());
    }
  }
  // Directories come after their parents.
  for (auto directory = directories.rbegin(); directory != directories.rend(); ++directory) {
    if (rmdir(directory->c_str()) != 0 && errno != ENOTEMPTY) {
      return FileError(errno, "remove", directory->native());
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string RepositoryMirror::ModelsIn(const std::string& directory) {
  return absl::StrCat(directory, "/models");
}

absl::StatusOr<std::unique_ptr<RepositoryMirror>> RepositoryMirror::Open(const ObjectStore* store,
                                                                         std::string path,
                                                                         std::string directory) {
  BRAID_RETURN_IF_ERROR(MakeDirectories(ModelsIn(directory)));
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<ObjectCopies> copies,
                         ObjectCopies::Open(store, directory, std::numeric_limits<int64_t>::max()));
  return std::unique_ptr<RepositoryMirror>(
      new RepositoryMirror(store, std::move(path), std::move(directory), std::move(copies)));
}

absl::Status RepositoryMirror::Update() {
  BRAID_ASSIGN_OR_RETURN(const std::vector<StoredObject> objects, store_->Find(path_));
  BRAID_RETURN_IF_ERROR(copies_->Fetch(objects, [](int64_t, int64_t) { return absl::OkStatus(); }));
  std::map<std::string, std::vector<Entry>> units;
  for (const StoredObject& object : objects) {
    if (object.path == path_) {
      return absl::InvalidArgumentError(
          absl::StrCat("'s3://", path_, "' is an object (expected a prefix with models)"));
    }
    const std::string name = object.path.substr(path_.size() + 1);
    units[UnitOf(name)].emplace_back(name, &object);
  }
  const std::string models = ModelsIn(directory_);
  for (const std::string& file : FilesBelow(models, models)) {
    if (!units.contains(UnitOf(file))) {
      BRAID_RETURN_IF_ERROR(RemoveTree(absl::StrCat(models, "/", file)));
    }
  }
  // First, because a file may take the place of a directory.
  BRAID_RETURN_IF_ERROR(RemoveEmptyDirectories(models));
  for (const auto& [unit, entries] : units) {
    BRAID_RETURN_IF_ERROR(Replace(unit, entries));
  }
  return copies_->RemoveUnlinked();
}

bool RepositoryMirror::IsCurrent(const std::string& unit, const std::vector<Entry>& entries) const {
  const std::string models = ModelsIn(directory_);
  const std::set<std::string> files = FilesBelow(absl::StrCat(models, "/", unit), models);
  return files.size() == entries.size() &&
         std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
           std::error_code error;
           return fs::equivalent(absl::StrCat(models, "/", entry.first),
                                 copies_->CopyOf(*entry.second), error);
         });
}

absl::Status RepositoryMirror::Replace(const std::string& unit,
                                       const std::vector<Entry>& entries) const {
  if (IsCurrent(unit, entries)) {
    return absl::OkStatus();
  }
  const std::string next = absl::StrCat(directory_, "/next");
  BRAID_RETURN_IF_ERROR(RemoveTree(next));
  for (const auto& [name, object] : entries) {
    const std::string file = absl::StrCat(next, "/", name);
    BRAID_RETURN_IF_ERROR(MakeDirectories(fs::path(file).parent_path()));
    if (link(copies_->CopyOf(*object).c_str(), file.c_str()) != 0) {
      return FileError(errno, "link", file);
    }
  }
  const std::string place = absl::StrCat(ModelsIn(directory_), "/", unit);
  BRAID_RETURN_IF_ERROR(MakeDirectories(fs::path(place).parent_path()));
  // rename() replaces files only. A poll comes after the update, so it sees no gap.
  std::error_code error;
  if (fs::is_directory(place, error)) {
    BRAID_RETURN_IF_ERROR(RemoveTree(place));
  }
  return RenameDurably(absl::StrCat(next, "/", unit), place);
}

}  // namespace braid

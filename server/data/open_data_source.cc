#include "server/data/open_data_source.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/data/array_source.h"
#include "server/data/data_file.h"
#include "server/data/data_paths.h"
#include "server/data/encoded/image_folder.h"
#include "server/data/table_source.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kFormats = "Parquet, Arrow IPC, CSV, .npy, .npz, .safetensors or IDX";

enum class Kind { kTable, kArrays };

std::optional<Kind> KindOf(const std::string& path, absl::string_view head) {
  if (IsTableFile(path, head)) {
    return Kind::kTable;
  }
  if (IsArrayFile(path, head)) {
    return Kind::kArrays;
  }
  return std::nullopt;
}

absl::StatusOr<Kind> KindOfFile(const DataFile& file) {
  BRAID_ASSIGN_OR_RETURN(const std::string head, file.Read(0, 8));
  if (const std::optional<Kind> kind = KindOf(file.path(), head)) {
    return *kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown format of '", file.path(), "' (expected ", kFormats,
                   IsImageFile(file.path()) ? ", or a directory with images only)" : ")"));
}

bool IsHidden(const fs::path& path) {
  const std::string name = path.filename();
  return name.empty() || name.front() == '.' || name.front() == '_';
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path,
                                                 const std::vector<std::string>& roots) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return std::vector<std::string>{path};
  }
  std::vector<std::string> files;
  for (fs::directory_iterator child(path, error), end; !error && child != end;
       child.increment(error)) {
    std::error_code gone;
    if (IsHidden(child->path()) || !child->is_regular_file(gone)) {
      continue;
    }
    if (!ResolvesBelowAny(child->path(), roots)) {
      return LeavesRoots(child->path().native(), roots);
    }
    files.push_back(child->path());
  }
  if (error) {
    return FileError(error.value(), "list", path);
  }
  if (files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("directory '", path, "' has no files (expected tables, arrays or images)"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenFiles(const std::vector<std::string>& paths,
                                                      const std::string& scratch) {
  std::vector<std::shared_ptr<const DataFile>> files;
  std::optional<Kind> kind;
  for (const std::string& path : paths) {
    BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const DataFile> file, DataFile::Open(path));
    BRAID_ASSIGN_OR_RETURN(const Kind own, KindOfFile(*file));
    if (kind.value_or(own) != own) {
      return absl::InvalidArgumentError(absl::StrCat("'", paths.front(), "' and '", path,
                                                     "' are a table and an array (expected only "
                                                     "tables or only arrays in a directory)"));
    }
    kind = own;
    files.push_back(std::move(file));
  }
  if (kind == Kind::kArrays) {
    return OpenArraySource(files, scratch);
  }
  std::vector<std::unique_ptr<DataSource>> parts;
  for (std::shared_ptr<const DataFile>& file : files) {
    BRAID_ASSIGN_OR_RETURN(std::unique_ptr<DataSource> part, OpenTableSource(std::move(file)));
    parts.push_back(std::move(part));
  }
  return ConcatenateSources(std::move(parts), paths);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> OpenDataSource(const std::string& path,
                                                           const DataDirectories& directories,
                                                           absl::string_view field) {
  BRAID_ASSIGN_OR_RETURN(const std::string resolved,
                         ResolveDataPath(path, directories.roots, field));
  if (IsImageFolder(resolved)) {
    absl::StatusOr<std::unique_ptr<DataSource>> images =
        OpenImageFolder(resolved, directories.roots);
    return images.ok() ? std::move(images) : InField(field, images.status());
  }
  absl::StatusOr<std::vector<std::string>> files = FilesOf(resolved, directories.roots);
  if (!files.ok()) {
    return InField(field, files.status());
  }
  absl::StatusOr<std::unique_ptr<DataSource>> source = OpenFiles(*files, directories.scratch);
  if (!source.ok()) {
    return InField(field, source.status());
  }
  return source;
}

absl::StatusOr<std::string> FolderOf(const std::string& path, const std::vector<std::string>& roots,
                                     absl::string_view field) {
  BRAID_ASSIGN_OR_RETURN(const std::string resolved, ResolveDataPath(path, roots, field));
  std::error_code error;
  return fs::is_directory(resolved, error) ? resolved : fs::path(resolved).parent_path().string();
}

absl::StatusOr<std::vector<ListedData>> ListData(const std::string& path,
                                                 const std::vector<std::string>& roots,
                                                 absl::string_view field) {
  BRAID_ASSIGN_OR_RETURN(const std::string resolved, ResolveDataPath(path, roots, field));
  std::vector<ListedData> listed;
  std::error_code error;
  for (fs::directory_iterator child(resolved, error), end; !error && child != end;
       child.increment(error)) {
    if (IsHidden(child->path()) || !ResolvesBelowAny(child->path(), roots)) {
      continue;
    }
    // Leaves out an entry that was deleted since it was listed.
    std::error_code gone;
    if (child->is_directory(gone)) {
      listed.push_back({child->path().filename(), true, 0});
      continue;
    }
    const auto file = DataFile::Open(child->path());
    if (file.ok() && KindOfFile(**file).ok()) {
      listed.push_back({child->path().filename(), false, (*file)->bytes()});
    }
  }
  if (error) {
    return InField(field, FileError(error.value(), "list", resolved));
  }
  std::sort(listed.begin(), listed.end(),
            [](const ListedData& a, const ListedData& b) { return a.name < b.name; });
  return listed;
}

}  // namespace braid

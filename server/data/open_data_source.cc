#include "server/data/open_data_source.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/array_source.h"
#include "server/data/data_file.h"
#include "server/data/data_paths.h"
#include "server/data/encoded/image_folder.h"
#include "server/data/table_source.h"
#include "server/remote/object_path.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kFormats = "Parquet, Arrow IPC, CSV, .npy, .npz, .safetensors or IDX";

// How long a call waits for copies of objects.
constexpr absl::Duration kMaxCallWait = absl::Seconds(10);

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

// Returns true for a table or an array.
bool HasFormat(const std::string& path) {
  const auto file = DataFile::Open(path);
  return file.ok() && KindOfFile(**file).ok();
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
      return OutsideRootsError(child->path().native(), roots);
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

// Names the objects in errors.
class CopiedScan final : public RowScan {
 public:
  CopiedScan(std::unique_ptr<RowScan> scan, std::shared_ptr<const CopiedSet> copy)
      : scan_(std::move(scan)), copy_(std::move(copy)) {}

  absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> Next() override {
    absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> rows = scan_->Next();
    return rows.ok() ? std::move(rows) : copy_->NameObjects(rows.status());
  }

 private:
  const std::unique_ptr<RowScan> scan_;
  const std::shared_ptr<const CopiedSet> copy_;
};

// Data source in a copy of objects, which it keeps. Names the objects in errors.
class CopiedSource final : public DataSource {
 public:
  CopiedSource(std::unique_ptr<DataSource> source, std::shared_ptr<const CopiedSet> copy)
      : source_(std::move(source)), copy_(std::move(copy)) {}

  absl::string_view format() const override { return source_->format(); }
  const std::vector<Column>& columns() const override { return source_->columns(); }
  const std::shared_ptr<arrow::Schema>& schema() const override { return source_->schema(); }
  // Stays the same if the objects are copied again.
  std::string Identity() const override { return copy_->identity; }
  absl::StatusOr<int64_t> Rows() override {
    const absl::StatusOr<int64_t> rows = source_->Rows();
    return rows.ok() ? rows : copy_->NameObjects(rows.status());
  }
  std::optional<int64_t> KnownRows() const override { return source_->KnownRows(); }
  absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) override {
    absl::StatusOr<std::unique_ptr<RowScan>> scan = source_->Scan(options);
    if (!scan.ok()) {
      return copy_->NameObjects(scan.status());
    }
    return std::make_unique<CopiedScan>(*std::move(scan), copy_);
  }
  std::string PathColumn(absl::string_view column) const override {
    return source_->PathColumn(column);
  }
  std::shared_ptr<const CopiedSet> copy() const override { return copy_; }
  const std::vector<StoredArray>* arrays() const override { return source_->arrays(); }

 private:
  const std::unique_ptr<DataSource> source_;
  const std::shared_ptr<const CopiedSet> copy_;
};

absl::StatusOr<std::unique_ptr<DataSource>> OpenRemoteSource(const std::string& path,
                                                             const DataDirectories& directories,
                                                             absl::string_view field,
                                                             const CopyProgress& progress) {
  BRAID_ASSIGN_OR_RETURN(const std::string key, ResolveRemotePath(path, directories.remote, field));
  absl::StatusOr<std::shared_ptr<const CopiedSet>> copy =
      directories.remote->copies->Copy(key, progress == nullptr ? StopAfterWait(path) : progress);
  if (!copy.ok()) {
    return WithField(field, copy.status());
  }
  absl::StatusOr<std::unique_ptr<DataSource>> source =
      OpenDataSource((*copy)->path, {{(*copy)->root}, directories.scratch}, field);
  if (!source.ok()) {
    return (*copy)->NameObjects(source.status());
  }
  return std::make_unique<CopiedSource>(*std::move(source), *std::move(copy));
}

}  // namespace

absl::StatusOr<std::string> ResolveRemotePath(const std::string& path, const RemoteData* remote,
                                              absl::string_view field) {
  if (remote == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(field, ": '", Excerpt(path),
                     "' is in S3, which this server does not use (expected braid-server "
                     "--s3_allow=s3://BUCKET/PREFIX)"));
  }
  absl::StatusOr<std::string> key = ParseObjectPath(path);
  if (!key.ok()) {
    return WithField(field, key.status());
  }
  if (!IsBelowPrefix(*key, remote->prefixes)) {
    return InvalidField(
        field, absl::StrCat("'", Excerpt(path), "' is not allowed (expected s3://",
                            absl::StrJoin(remote->prefixes, " or s3://"), ", or a path below)"));
  }
  return key;
}

CopyProgress StopAfterWait(const std::string& path) {
  return [path, end = absl::Now() + kMaxCallWait](int64_t bytes, int64_t total) {
    if (absl::Now() < end) {
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "'", Excerpt(path), "' is not copied yet: ", bytes, " of ", total, " bytes after ",
        absl::FormatDuration(kMaxCallWait), " (retry, or submit a job, which waits for the copy)"));
  };
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenDataSource(const std::string& path,
                                                           const DataDirectories& directories,
                                                           absl::string_view field,
                                                           const CopyProgress& progress) {
  if (IsObjectPath(path)) {
    return OpenRemoteSource(path, directories, field, progress);
  }
  BRAID_ASSIGN_OR_RETURN(const std::string resolved,
                         ResolveDataPath(path, directories.roots, field));
  const auto is_data = [&](const std::string& file) {
    return ResolvesBelowAny(file, directories.roots) && HasFormat(file);
  };
  if (IsImageFolder(resolved, is_data)) {
    absl::StatusOr<std::unique_ptr<DataSource>> images =
        OpenImageFolder(resolved, directories.roots);
    return images.ok() ? std::move(images) : WithField(field, images.status());
  }
  absl::StatusOr<std::vector<std::string>> files = FilesOf(resolved, directories.roots);
  if (!files.ok()) {
    return WithField(field, files.status());
  }
  absl::StatusOr<std::unique_ptr<DataSource>> source = OpenFiles(*files, directories.scratch);
  if (!source.ok()) {
    return WithField(field, source.status());
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
  BRAID_ASSIGN_OR_RETURN(const std::string first, ResolveDataPath(path, roots, field));
  std::vector<std::string> directories = {first};
  if (path.empty()) {
    directories = roots;
  }
  std::map<std::string, ListedData> listed;  // by name, of the first root that has it
  for (const std::string& directory : directories) {
    std::error_code error;
    for (fs::directory_iterator child(directory, error), end; !error && child != end;
         child.increment(error)) {
      const std::string name = child->path().filename();
      if (IsHidden(name) || listed.contains(name) || !ResolvesBelowAny(child->path(), roots)) {
        continue;
      }
      // Leaves out an entry that was deleted since it was listed.
      std::error_code gone;
      if (child->is_directory(gone)) {
        listed[name] = {name, true, 0};
        continue;
      }
      const auto file = DataFile::Open(child->path());
      if (file.ok() && KindOfFile(**file).ok()) {
        listed[name] = {name, false, (*file)->bytes()};
      }
    }
    if (error) {
      return WithField(field, FileError(error.value(), "list", directory));
    }
  }
  std::vector<ListedData> entries;
  for (auto& [name, data] : listed) {
    entries.push_back(std::move(data));
  }
  return entries;
}

absl::StatusOr<std::vector<ListedData>> ListRemoteData(const std::string& path,
                                                       const RemoteData* remote,
                                                       absl::string_view field) {
  BRAID_ASSIGN_OR_RETURN(const std::string key, ResolveRemotePath(path, remote, field));
  const absl::StatusOr<std::vector<ListedObject>> objects = remote->store->List(key);
  if (!objects.ok()) {
    return WithField(field, objects.status());
  }
  const std::vector<std::string>& allowed = remote->prefixes;
  if (objects->empty() && std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
    return absl::NotFoundError(absl::StrCat(field, ": there are no objects below '", Excerpt(path),
                                            "' (expected a prefix of objects)"));
  }
  std::vector<ListedData> listed;
  for (const ListedObject& object : *objects) {
    if (!IsHidden(object.name) && (object.directory || KindOf(object.name, "").has_value())) {
      listed.push_back({object.name, object.directory, object.bytes});
    }
  }
  return listed;
}

}  // namespace braid

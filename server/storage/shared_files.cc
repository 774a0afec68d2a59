#include "server/storage/shared_files.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr char kUnfinished[] = "unfinished";

std::string NameOf(const StoredFile& stored) {
  return absl::StrCat(stored.checksum, "-", stored.bytes);
}

}  // namespace

absl::Status SharedFile::LinkTo(const std::string& place) const {
  if (link(path_.c_str(), place.c_str()) == 0) {
    return absl::OkStatus();
  }
  if (errno == EPERM || errno == EXDEV || errno == EMLINK || errno == EOPNOTSUPP ||
      errno == ENOSYS) {
    return CopyStoredFile(path_, stored_, place);
  }
  return FileError(errno, "link", place);
}

absl::StatusOr<std::unique_ptr<SharedFiles>> SharedFiles::Open(std::string directory) {
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory));
  std::unique_ptr<SharedFiles> files(new SharedFiles(std::move(directory)));
  if (const absl::Status removed = files->RemoveUnused(); !removed.ok()) {
    Log(LogModule::kStorage).warn("shared files: {}", std::string(removed.message()));
  }
  return files;
}

absl::StatusOr<std::shared_ptr<const SharedFile>> SharedFiles::Add(const NewFile& file) {
  BRAID_ASSIGN_OR_RETURN(StoredFile stored, MeasureFile(file));
  const std::string name = NameOf(stored);
  const std::string path = absl::StrCat(directory_, "/", name);
  const absl::MutexLock lock(&mu_);
  if (auto used = used_[name].lock(); used != nullptr && CheckStoredSize(path, stored).ok()) {
    return used;
  }
  // One that is damaged is replaced: only here, not where it is linked.
  if (!CheckStoredContent(path, stored).ok()) {
    BRAID_RETURN_IF_ERROR(Write(path, file, stored));
  }
  auto added = std::make_shared<const SharedFile>(path, std::move(stored));
  used_[name] = added;
  return added;
}

absl::Status SharedFiles::Write(const std::string& path, const NewFile& file,
                                const StoredFile& expected) {
  const std::string unfinished = absl::StrCat(directory_, "/", kUnfinished);
  absl::StatusOr<StoredFile> written = StoreFile(unfinished, file);
  if (written.ok() && NameOf(*written) != NameOf(expected)) {
    written = absl::InternalError(absl::StrCat("'", path, "': the contents changed"));
  }
  absl::Status status = written.ok() ? RenameDurably(unfinished, path) : written.status();
  if (!status.ok()) {
    RemoveTree(unfinished).IgnoreError();  // RemoveUnused() removes it later
  }
  return status;
}

absl::Status SharedFiles::RemoveUnused() {
  const absl::MutexLock lock(&mu_);
  std::erase_if(used_, [](const auto& used) { return used.second.expired(); });
  std::error_code error;
  std::vector<fs::path> unused;
  for (fs::directory_iterator file(directory_, error), end; !error && file != end;
       file.increment(error)) {
    std::error_code gone;
    if (!used_.contains(file->path().filename()) && file->is_regular_file(gone) &&
        file->hard_link_count(gone) == 1) {
      unused.push_back(file->path());
    }
  }
  if (error) {
    return FileError(error.value(), "list", directory_);
  }
  for (const fs::path& path : unused) {
    BRAID_RETURN_IF_ERROR(RemoveTree(path));
  }
  return absl::OkStatus();
}

}  // namespace braid

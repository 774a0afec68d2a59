#include "server/datasets/dataset_store.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/base/random_id.h"
#include "server/base/status.h"
#include "server/storage/directory_lock.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kHidden[] = ".braid";
constexpr absl::Duration kCleanInterval = absl::Hours(1);
constexpr int64_t kMaxRecordBytes = int64_t{1} << 30;

// File below a directory. Directories are not listed.
struct FoundFile {
  int64_t bytes = 0;
  int64_t modified = 0;  // nanoseconds since 1970
  bool regular = false;
};
using FoundFiles = std::map<std::string, FoundFile>;  // by path; "" for the file itself

std::optional<struct stat> Stat(const std::string& path) {
  struct stat status = {};
  return lstat(path.c_str(), &status) == 0 ? std::optional(status) : std::nullopt;
}

bool Exists(const std::string& path) { return Stat(path).has_value(); }

// Adds the files below `path`, which is relative to `root`. Does not follow links. Skips
// files that are deleted during the call, and folders that may not be read, such as lost+found.
absl::Status AddFiles(const std::string& root, const std::string& path, FoundFiles* files) {
  const std::string absolute = path.empty() ? root : absl::StrCat(root, "/", path);
  const auto status = Stat(absolute);
  if (!status) {
    return errno == ENOENT ? absl::OkStatus() : FileError(errno, "read", absolute);
  }
  if (!S_ISDIR(status->st_mode)) {
    (*files)[path] = {status->st_size,
                      int64_t{status->st_mtim.tv_sec} * 1'000'000'000 + status->st_mtim.tv_nsec,
                      S_ISREG(status->st_mode)};
    return absl::OkStatus();
  }
  std::error_code error;
  for (fs::directory_iterator child(absolute, error), end; !error && child != end;
       child.increment(error)) {
    const std::string name = child->path().filename();
    BRAID_RETURN_IF_ERROR(
        AddFiles(root, path.empty() ? name : absl::StrCat(path, "/", name), files));
  }
  const bool skipped =
      error == std::errc::no_such_file_or_directory || error == std::errc::permission_denied;
  return error && !skipped ? FileError(error.value(), "list", absolute) : absl::OkStatus();
}

absl::StatusOr<FoundFiles> FilesBelow(const std::string& path) {
  FoundFiles files;
  BRAID_RETURN_IF_ERROR(AddFiles(path, "", &files));
  return files;
}

// Returns true for the files that count towards the quota: all except those that describe datasets
// and uploads. `path` is relative to the root.
bool Counts(absl::string_view path) {
  const std::vector<absl::string_view> names = absl::StrSplit(path, absl::MaxSplits('/', 4));
  return names[0] != kHidden || (names.size() > 2 && names[1] == "removed") ||
         (names.size() > 3 && names[1] == "uploads" && names[3] == "data");
}

// Returns when something below `path` last changed.
absl::Time LastChange(const std::string& path) {
  absl::Time last = absl::UnixEpoch();
  const absl::StatusOr<FoundFiles> files = FilesBelow(path);
  if (files.ok()) {
    for (const auto& [name, file] : *files) {
      last = std::max(last, absl::FromUnixNanos(file.modified));
    }
  }
  return last;
}

// Checksum of a file that had a size and time when it was verified.
struct RecordedFile {
  std::string sha256;
  int64_t bytes = 0;
  int64_t modified = 0;
};
using Record = std::map<std::string, RecordedFile>;

// Returns an empty record if there is none, or it cannot be read: it only saves time.
Record ReadRecord(const std::string& path) {
  Record record;
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxRecordBytes);
  if (!text.ok()) {
    return record;
  }
  try {
    for (const Json& entry : Json::parse(*text)) {
      record[entry.at(0).get<std::string>()] = {
          entry.at(1).get<std::string>(), entry.at(2).get<int64_t>(), entry.at(3).get<int64_t>()};
    }
  } catch (const Json::exception& error) {
    Log(LogModule::kStorage).warn("'{}' is damaged and not used: {}", path, error.what());
    record.clear();
  }
  return record;
}

std::string WriteRecord(const DatasetManifest& manifest, const FoundFiles& found) {
  Json record = Json::array();
  for (const DatasetFile& file : manifest.files) {
    if (const auto entry = found.find(file.path); entry != found.end()) {
      record.push_back(Json::array(
          {file.path, Sha256Hex(file.sha256), entry->second.bytes, entry->second.modified}));
    }
  }
  return record.dump();
}

// Gives the name `to` to `from`. What had this name, if anything, then has the name `from`, or is
// gone if both are files. Atomic for readers of `to`.
absl::Status Replace(const std::string& from, const std::string& to) {
  const auto existing = Stat(to);
  const auto replacing = Stat(from);
  const bool files =
      existing && replacing && !S_ISDIR(existing->st_mode) && !S_ISDIR(replacing->st_mode);
  if (!existing || files) {
    return rename(from.c_str(), to.c_str()) == 0
               ? absl::OkStatus()
               : FileError(errno, absl::StrCat("rename '", from, "' to"), to);
  }
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  if (errno == EINVAL || errno == ENOSYS) {
    return absl::FailedPreconditionError(
        absl::StrCat("overwrite: the file system of '", to,
                     "' cannot replace a folder atomically: delete the dataset first"));
  }
  return FileError(errno, absl::StrCat("exchange '", from, "' with"), to);
}

absl::Status DatasetExists(const std::string& name) {
  return absl::AlreadyExistsError(absl::StrCat("dataset: '", name,
                                               "' exists with different files (use another "
                                               "name, or `overwrite`)"));
}

absl::Status NoUpload(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("upload: there is no upload '", id,
                                          "' (expected one that StartDatasetUpload returned and "
                                          "that has not ended)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DatasetStore>> DatasetStore::Open(const Options& options) {
  for (const char* folder : {"uploads", "records", "removed"}) {
    BRAID_RETURN_IF_ERROR(MakeDirectories(absl::StrCat(options.root, "/", kHidden, "/", folder)));
  }
  BRAID_ASSIGN_OR_RETURN(FileDescriptor lock,
                         LockDirectory(absl::StrCat(options.root, "/", kHidden)));
  std::error_code error;
  const fs::path root = fs::canonical(options.root, error);
  if (error) {
    return FileError(error.value(), "resolve", options.root);
  }
  std::unique_ptr<DatasetStore> store(new DatasetStore(root, options, std::move(lock)));
  BRAID_RETURN_IF_ERROR(store->RemoveLeftovers());
  store->RemoveExpired();
  BRAID_RETURN_IF_ERROR(store->Recount());
  store->cleaner_ = std::thread([store = store.get()] {
    pthread_setname_np(pthread_self(), "datasets");
    while (!store->stop_.WaitForNotificationWithTimeout(kCleanInterval)) {
      store->RemoveExpired();
    }
  });
  return store;
}

DatasetStore::DatasetStore(std::string root, const Options& options, FileDescriptor lock)
    : root_(std::move(root)),
      clock_(options.clock),
      lock_(std::move(lock)),
      space_(options.quota) {}

DatasetStore::~DatasetStore() {
  stop_.Notify();
  if (cleaner_.joinable()) {
    cleaner_.join();
  }
}

std::string DatasetStore::PlaceOf(const std::string& name) const {
  return absl::StrCat(root_, "/", name);
}

std::string DatasetStore::UploadDirectory(const std::string& id) const {
  return absl::StrCat(root_, "/", kHidden, "/uploads/", id);
}

std::string DatasetStore::RecordOf(const std::string& name) const {
  return absl::StrCat(root_, "/", kHidden, "/records/", name);
}

absl::Status DatasetStore::Recount() {
  const int64_t before = space_.used();
  BRAID_ASSIGN_OR_RETURN(const FoundFiles files, FilesBelow(root_));
  int64_t bytes = 0;
  for (const auto& [path, file] : files) {
    bytes += Counts(path) ? file.bytes : 0;
  }
  space_.Recount(before, bytes);
  return absl::OkStatus();
}

absl::Status DatasetStore::RemoveLeftovers() {
  const std::string removed = absl::StrCat(root_, "/", kHidden, "/removed");
  BRAID_RETURN_IF_ERROR(RemoveTree(removed));
  return MakeDirectories(removed);
}

void DatasetStore::RemoveExpired() {
  const absl::MutexLock lock(&mu_);
  RemoveExpiredLocked();
}

void DatasetStore::RemoveExpiredLocked() {
  const absl::StatusOr<std::vector<std::string>> uploads = ListDirectories(UploadDirectory(""));
  if (!uploads.ok()) {
    Log(LogModule::kStorage).error("datasets: {}", std::string(uploads.status().message()));
    return;
  }
  for (const std::string& id : *uploads) {
    const auto active = active_.find(id);
    if (active != active_.end() && !active->second.expired()) {
      continue;
    }
    active_.erase(id);
    const absl::Duration age = clock_->Now() - LastChange(UploadDirectory(id));
    if (age <= kUploadLifetime) {
      continue;
    }
    absl::Status status = RemoveTree(UploadDirectory(id));
    status.Update(Recount());
    if (status.ok()) {
      Log(LogModule::kStorage)
          .info("datasets: removed an unfinished upload that nobody continued for {}",
                absl::FormatDuration(absl::Trunc(age, absl::Seconds(1))));
    } else {
      Log(LogModule::kStorage).error("datasets: {}", std::string(status.message()));
    }
  }
}

absl::Status DatasetStore::CheckRoom(int64_t bytes) const {
  BRAID_RETURN_IF_ERROR(space_.Check(bytes));
  std::error_code error;
  const fs::space_info disk = fs::space(root_, error);
  if (error) {
    return FileError(error.value(), "read the free space of", root_);
  }
  if (bytes > 0 && static_cast<uintmax_t>(bytes) > disk.available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("files: ", bytes, " more bytes do not fit: the disk of --dataset_root has ",
                     disk.available, " bytes free; delete a dataset first"));
  }
  return absl::OkStatus();
}

absl::Status DatasetStore::CheckUploads(const std::string& id) const {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> uploads,
                         ListDirectories(UploadDirectory("")));
  if (uploads.size() >= kMaxUploads && !Exists(UploadDirectory(id))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("dataset: ", uploads.size(), " unfinished uploads (expected fewer than ",
                     kMaxUploads, "); the server removes an upload that is not continued for ",
                     absl::FormatDuration(kUploadLifetime)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DatasetStore::Matches(const DatasetManifest& manifest) const {
  const std::string place = PlaceOf(manifest.dataset);
  BRAID_ASSIGN_OR_RETURN(const FoundFiles found, FilesBelow(place));
  const auto differs = [&found](const DatasetFile& file) {
    const auto entry = found.find(file.path);
    return entry == found.end() || !entry->second.regular || entry->second.bytes != file.bytes;
  };
  if (found.size() != manifest.files.size() ||
      std::any_of(manifest.files.begin(), manifest.files.end(), differs)) {
    return false;
  }
  const Record record = ReadRecord(RecordOf(manifest.dataset));
  for (const DatasetFile& file : manifest.files) {
    const auto known = record.find(file.path);
    if (known != record.end() && known->second.bytes == file.bytes &&
        known->second.modified == found.at(file.path).modified) {
      if (known->second.sha256 != Sha256Hex(file.sha256)) {
        return false;
      }
      continue;
    }
    // Written by somebody else, or changed since.
    BRAID_ASSIGN_OR_RETURN(
        const Sha256Digest sha256,
        Sha256OfFile(file.path.empty() ? place : absl::StrCat(place, "/", file.path)));
    if (sha256 != file.sha256) {
      return false;
    }
  }
  return true;
}

void DatasetStore::SupersedeActive(const std::string& id) {
  const auto found = active_.find(id);
  if (found == active_.end()) {
    return;
  }
  if (const std::shared_ptr<DatasetUpload> upload = found->second.lock()) {
    upload->Supersede();
  }
  active_.erase(found);
}

absl::StatusOr<DatasetStore::Started> DatasetStore::Start(const DatasetManifest& manifest,
                                                          bool overwrite) {
  BRAID_RETURN_IF_ERROR(CheckManifest(manifest));
  const absl::MutexLock lock(&mu_);
  if (Exists(PlaceOf(manifest.dataset))) {
    BRAID_ASSIGN_OR_RETURN(const bool equal, Matches(manifest));
    if (equal) {
      return Started{.complete = true};
    }
    if (!overwrite) {
      return DatasetExists(manifest.dataset);
    }
  }
  RemoveExpiredLocked();
  const std::string id = UploadIdOf(manifest);
  BRAID_RETURN_IF_ERROR(CheckUploads(id));
  SupersedeActive(id);
  const bool created = !Exists(UploadDirectory(id));
  const StoredUpload stored{manifest, overwrite, RandomId()};
  BRAID_RETURN_IF_ERROR(DatasetUpload::Create(UploadDirectory(id), stored));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<DatasetUpload> upload,
                         DatasetUpload::Open(UploadDirectory(id), stored, &space_));
  Started started{.upload = absl::StrCat(id, "-", stored.token), .received = upload->Received()};
  int64_t left = manifest.bytes();
  for (const int64_t received : started.received) {
    left -= received;
  }
  absl::Status room = Recount();
  if (room.ok()) {
    room = CheckRoom(left);
  }
  if (!room.ok()) {
    if (created) {
      DiscardLocked(upload.get());
    }
    return room;
  }
  return started;
}

absl::StatusOr<std::shared_ptr<DatasetUpload>> DatasetStore::Continue(const std::string& upload) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(upload, absl::MaxSplits('-', 1));
  const auto& [id, token] = parts;
  if (!ParseSha256(id)) {
    return InvalidField("upload", "not an ID of StartDatasetUpload (expected the one it returned)");
  }
  const absl::MutexLock lock(&mu_);
  absl::StatusOr<StoredUpload> stored = DatasetUpload::Read(UploadDirectory(id));
  if (absl::IsNotFound(stored.status())) {
    return NoUpload(upload);
  }
  BRAID_RETURN_IF_ERROR(stored.status());
  if (token != stored->token) {
    return UploadAborted(stored->manifest.dataset, "continues");
  }
  SupersedeActive(id);
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<DatasetUpload> opened,
                         DatasetUpload::Open(UploadDirectory(id), *std::move(stored), &space_));
  active_[id] = opened;
  return opened;
}

absl::StatusOr<DatasetStore::Outcome> DatasetStore::Commit(DatasetUpload* upload) {
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(upload->Finish());
  absl::StatusOr<Outcome> outcome = CommitLocked(upload);
  // A failure of the disk, after which the client may continue, keeps the files.
  if (outcome.ok() || absl::IsAlreadyExists(outcome.status())) {
    DiscardLocked(upload);
  }
  return outcome;
}

absl::StatusOr<DatasetStore::Outcome> DatasetStore::CommitLocked(DatasetUpload* upload) {
  const DatasetManifest& manifest = upload->manifest();
  const std::string place = PlaceOf(manifest.dataset);
  const bool exists = Exists(place);
  if (exists) {
    BRAID_ASSIGN_OR_RETURN(const bool equal, Matches(manifest));
    if (equal) {
      return Outcome::kUnchanged;
    }
    if (!upload->overwrite()) {
      return DatasetExists(manifest.dataset);
    }
  }
  BRAID_RETURN_IF_ERROR(Replace(upload->data(), place));
  BRAID_RETURN_IF_ERROR(SyncDirectory(root_));
  const absl::StatusOr<FoundFiles> found = FilesBelow(place);
  const absl::Status recorded =
      found.ok() ? WriteFileDurably(RecordOf(manifest.dataset), WriteRecord(manifest, *found))
                 : found.status();
  if (!recorded.ok()) {
    Log(LogModule::kStorage)
        .warn("dataset '{}' is stored, but its checksums are not: {}", manifest.dataset,
              std::string(recorded.message()));
  }
  return exists ? Outcome::kReplaced : Outcome::kStored;
}

void DatasetStore::Discard(DatasetUpload* upload) {
  const absl::MutexLock lock(&mu_);
  DiscardLocked(upload);
}

void DatasetStore::DiscardLocked(DatasetUpload* upload) {
  upload->Supersede();
  absl::Status status = RemoveTree(upload->directory());
  status.Update(Recount());
  if (!status.ok()) {
    // RemoveExpired() tries again.
    Log(LogModule::kStorage).error("datasets: {}", std::string(status.message()));
  }
}

absl::StatusOr<std::string> DatasetStore::Find(const std::string& name) const {
  BRAID_RETURN_IF_ERROR(CheckDatasetName(name));
  if (!Exists(PlaceOf(name))) {
    return absl::NotFoundError(absl::StrCat("dataset: there is no dataset '", name,
                                            "' (expected one below --dataset_root)"));
  }
  return PlaceOf(name);
}

absl::Status DatasetStore::Delete(const std::string& name) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const std::string place, Find(name));
  const std::string removed = absl::StrCat(root_, "/", kHidden, "/removed/", RandomId());
  if (rename(place.c_str(), removed.c_str()) != 0) {
    return FileError(errno, "remove", place);
  }
  BRAID_RETURN_IF_ERROR(SyncDirectory(root_));
  BRAID_RETURN_IF_ERROR(RemoveTree(RecordOf(name)));
  BRAID_RETURN_IF_ERROR(RemoveTree(removed));
  return Recount();
}

}  // namespace braid

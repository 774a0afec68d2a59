#include "server/remote/object_copies.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/status.h"
#include "server/remote/parallel.h"
#include "server/storage/checksum.h"
#include "server/storage/file_descriptor.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPartBytes = int64_t{8} << 20;
constexpr absl::string_view kTemporary = ".tmp";
constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);

std::string KeyOf(const StoredObject& object) {
  return ChecksumOf(absl::StrCat(object.path, "\n", object.bytes, "\n", object.version));
}

std::string IdentityOf(const std::string& path, const std::vector<StoredObject>& objects) {
  std::string identity = absl::StrCat("s3://", path, "\n");
  for (const StoredObject& object : objects) {
    absl::StrAppend(&identity, object.path, "\n", object.bytes, " ", object.version, "\n");
  }
  return identity;
}

// Data sources skip such names.
bool IsHidden(absl::string_view relative) {
  const std::vector<absl::string_view> parts = absl::StrSplit(relative, '/');
  return std::any_of(parts.begin(), parts.end(),
                     [](absl::string_view part) { return absl::StartsWith(part, "."); });
}

absl::Status WriteAt(const std::string& path, int64_t offset, absl::string_view bytes) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  while (file.get() >= 0) {
    if (bytes.empty()) {
      return absl::OkStatus();
    }
    const ssize_t written = pwrite(file.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno != EINTR) {
      break;
    }
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
    offset += std::max<ssize_t>(written, 0);
  }
  return FileError(errno, "write", path);
}

absl::Status SyncFile(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.get() >= 0 && fsync(file.get()) == 0 ? absl::OkStatus()
                                                   : FileError(errno, "write", path);
}

// Calls `visit` for each entry of a directory.
template <typename Visit>
absl::Status ForEachEntry(const std::string& directory, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator child(directory, error), end; !error && child != end;
       child.increment(error)) {
    BRAID_RETURN_IF_ERROR(visit(child->path().native()));
  }
  return error ? FileError(error.value(), "list", directory) : absl::OkStatus();
}

absl::Status RemoveTemporary(const std::string& directory) {
  return ForEachEntry(directory, [](const std::string& path) {
    return absl::EndsWith(path, kTemporary) ? RemoveTree(path) : absl::OkStatus();
  });
}

absl::StatusOr<struct stat> StatOf(const std::string& path) {
  struct stat about = {};
  return lstat(path.c_str(), &about) == 0 ? absl::StatusOr<struct stat>(about)
                                          : FileError(errno, "read", path);
}

// The time of modification of a set's directory is that of its last use.
void MarkUsed(const std::string& set) {
  // Without it, the set is removed earlier than necessary.
  (void)utimensat(AT_FDCWD, set.c_str(), nullptr, 0);
}

// Object that is being copied.
struct Copying {
  const StoredObject* object = nullptr;
  std::string temporary;
  std::string place;
  std::atomic<int64_t> parts_left = 0;
};

struct Part {
  Copying* copying = nullptr;
  int64_t offset = 0;
  int64_t bytes = 0;
};

absl::Status CopyPart(const ObjectStore& store, const Part& part) {
  Copying& copying = *part.copying;
  std::string bytes;
  if (part.bytes > 0) {
    BRAID_ASSIGN_OR_RETURN(bytes, store.Read(*copying.object, part.offset, part.bytes));
  }
  BRAID_RETURN_IF_ERROR(WriteAt(copying.temporary, part.offset, bytes));
  if (--copying.parts_left > 0) {
    return absl::OkStatus();
  }
  // The parts may be of different versions.
  BRAID_RETURN_IF_ERROR(store.CheckUnchanged(*copying.object));
  BRAID_RETURN_IF_ERROR(SyncFile(copying.temporary));
  return std::rename(copying.temporary.c_str(), copying.place.c_str()) == 0
             ? absl::OkStatus()
             : FileError(errno, "write", copying.place);
}

}  // namespace

absl::Status CopiedSet::NameObjects(const absl::Status& error) const {
  absl::Status named(error.code(),
                     absl::StrReplaceAll(error.message(), {{absl::StrCat(root, "/"), "s3://"}}));
  error.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { named.SetPayload(type, payload); });
  return named;
}

absl::StatusOr<std::unique_ptr<ObjectCopies>> ObjectCopies::Open(const ObjectStore* store,
                                                                 std::string directory,
                                                                 int64_t max_bytes) {
  const fs::path given = std::move(directory);
  std::error_code error;
  fs::path resolved = fs::absolute(given, error);
  if (!error) {
    // Without links, as in errors of data sources, in which CopiedSet::NameObjects() finds it.
    resolved = fs::weakly_canonical(resolved, error);
  }
  if (error) {
    return FileError(error.value(), "resolve", given.native());
  }
  std::unique_ptr<ObjectCopies> copies(new ObjectCopies(store, resolved, max_bytes));
  for (const std::string& child : {copies->ObjectsDirectory(), copies->SetsDirectory()}) {
    BRAID_RETURN_IF_ERROR(MakeDirectories(child));
    BRAID_RETURN_IF_ERROR(RemoveTemporary(child));
  }
  return copies;
}

std::string ObjectCopies::ObjectsDirectory() const { return absl::StrCat(directory_, "/objects"); }
std::string ObjectCopies::SetsDirectory() const { return absl::StrCat(directory_, "/sets"); }

std::string ObjectCopies::CopyOf(const StoredObject& object) const {
  return absl::StrCat(ObjectsDirectory(), "/", KeyOf(object));
}

absl::StatusOr<std::shared_ptr<const CopiedSet>> ObjectCopies::Copy(const std::string& path,
                                                                    const CopyProgress& progress) {
  BRAID_ASSIGN_OR_RETURN(Objects objects, store_->Find(path));
  std::erase_if(objects, [&](const StoredObject& object) {
    return object.path != path && IsHidden(object.path.substr(path.size() + 1));
  });
  if (objects.empty()) {
    return absl::NotFoundError(absl::StrCat("'s3://", path,
                                            "' has no objects to read (names that start "
                                            "with '.' are skipped)"));
  }
  const std::string identity = IdentityOf(path, objects);
  const std::string key = ChecksumOf(identity);
  const std::string root = absl::StrCat(SetsDirectory(), "/", key);
  const CopiedSet set{root, absl::StrCat(root, "/", path), identity};
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const CopiedSet> used,
                         UseOrClaim(key, set, objects, progress));
  if (used != nullptr) {
    return used;
  }
  const absl::Cleanup release = [&] { Release(key, objects); };
  BRAID_RETURN_IF_ERROR(Fetch(objects, progress));
  BRAID_RETURN_IF_ERROR(Link(root, objects));
  const absl::MutexLock lock(&mu_);
  return Use(key, set);
}

absl::StatusOr<std::shared_ptr<const CopiedSet>> ObjectCopies::UseOrClaim(
    const std::string& key, const CopiedSet& set, const Objects& objects,
    const CopyProgress& progress) {
  int64_t total = 0;
  for (const StoredObject& object : objects) {
    total += object.bytes;
  }
  const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !copying_.contains(key); };
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&free), kProgressInterval)) {
        return UseOrClaimFree(key, set, objects, total);
      }
    }
    BRAID_RETURN_IF_ERROR(progress(0, total));
  }
}

absl::StatusOr<std::shared_ptr<const CopiedSet>> ObjectCopies::UseOrClaimFree(
    const std::string& key, const CopiedSet& set, const Objects& objects, int64_t total) {
  std::error_code error;
  if (fs::exists(set.root, error)) {
    return Use(key, set);
  }
  if (total > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the objects have ", total, " bytes (expected at most --data_cache_bytes, ",
                     max_bytes_, "): use fewer objects, or a larger --data_cache_bytes"));
  }
  // Claims the copies that are there before making room, which removes those without a link.
  int64_t missing = 0;
  for (const StoredObject& object : objects) {
    wanted_.insert(KeyOf(object));
    missing += fs::exists(CopyOf(object), error) ? 0 : object.bytes;
  }
  absl::Status room = MakeRoom(missing);
  if (!room.ok()) {
    for (const StoredObject& object : objects) {
      wanted_.erase(wanted_.find(KeyOf(object)));
    }
    return room;
  }
  copying_[key] = missing;
  return nullptr;
}

void ObjectCopies::Release(const std::string& key, const Objects& objects) {
  const absl::MutexLock lock(&mu_);
  copying_.erase(key);
  for (const StoredObject& object : objects) {
    wanted_.erase(wanted_.find(KeyOf(object)));
  }
}

absl::Status ObjectCopies::Fetch(const Objects& objects, const CopyProgress& progress) const {
  std::vector<std::unique_ptr<Copying>> missing;
  std::vector<Part> parts;
  int64_t total = 0;
  for (const StoredObject& object : objects) {
    const std::string place = CopyOf(object);
    std::error_code error;
    if (fs::exists(place, error)) {
      continue;
    }
    missing.push_back(std::make_unique<Copying>());
    Copying& copying = *missing.back();
    copying.object = &object;
    copying.place = place;
    // Another set may copy the same object.
    copying.temporary =
        absl::StrCat(place, "-", ChecksumOf(objects.front().path), absl::Hex(&copying), kTemporary);
    for (int64_t offset = 0; offset == 0 || offset < object.bytes; offset += kPartBytes) {
      parts.push_back({&copying, offset, std::min(kPartBytes, object.bytes - offset)});
      ++copying.parts_left;
    }
    total += object.bytes;
  }
  std::atomic<int64_t> copied = 0;
  absl::Status status = InParallel(
      parts.size(),
      [&](size_t i) -> absl::Status {
        BRAID_RETURN_IF_ERROR(CopyPart(*store_, parts[i]));
        copied += parts[i].bytes;
        return absl::OkStatus();
      },
      [&] { return progress(copied, total); });
  if (!status.ok()) {
    for (const auto& copying : missing) {
      // Gives the space back. The error of copying matters more.
      RemoveTree(copying->temporary).IgnoreError();
    }
    return status;
  }
  return SyncDirectory(ObjectsDirectory());
}

absl::Status ObjectCopies::Link(const std::string& root, const Objects& objects) const {
  const std::string temporary = absl::StrCat(root, kTemporary);
  BRAID_RETURN_IF_ERROR(RemoveTree(temporary));
  for (const StoredObject& object : objects) {
    const std::string name = absl::StrCat(temporary, "/", object.path);
    BRAID_RETURN_IF_ERROR(MakeDirectories(fs::path(name).parent_path()));
    if (link(CopyOf(object).c_str(), name.c_str()) != 0) {
      return FileError(errno, "link", name);
    }
  }
  return RenameDurably(temporary, root);
}

std::shared_ptr<const CopiedSet> ObjectCopies::Use(const std::string& key, const CopiedSet& set) {
  MarkUsed(set.root);
  std::shared_ptr<const CopiedSet> used = in_use_[key].lock();
  if (used == nullptr) {
    used = std::make_shared<const CopiedSet>(set);
    in_use_[key] = used;
  }
  return used;
}

absl::StatusOr<int64_t> ObjectCopies::CopiedBytes() const {
  int64_t bytes = 0;
  BRAID_RETURN_IF_ERROR(ForEachEntry(ObjectsDirectory(), [&](const std::string& path) {
    // Space is reserved for those that are being copied.
    if (const auto about = StatOf(path); about.ok() && !absl::EndsWith(path, kTemporary)) {
      bytes += about->st_size;
    }
    return absl::OkStatus();
  }));
  return bytes;
}

absl::Status ObjectCopies::MakeRoom(int64_t bytes) {
  for (const auto& [key, reserved] : copying_) {
    bytes += reserved;
  }
  BRAID_ASSIGN_OR_RETURN(int64_t copied, CopiedBytes());
  if (copied + bytes <= max_bytes_) {
    return absl::OkStatus();
  }
  std::vector<std::pair<int64_t, std::string>> unused;  // time of the last use, path
  BRAID_RETURN_IF_ERROR(ForEachEntry(SetsDirectory(), [&](const std::string& path) -> absl::Status {
    mu_.AssertHeld();
    const std::string key = fs::path(path).filename();
    const auto user = in_use_.find(key);
    if ((user == in_use_.end() || user->second.expired()) && !copying_.contains(key) &&
        !absl::EndsWith(path, kTemporary)) {
      BRAID_ASSIGN_OR_RETURN(const struct stat about, StatOf(path));
      unused.emplace_back(about.st_mtim.tv_sec * int64_t{1'000'000'000} + about.st_mtim.tv_nsec,
                          path);
    }
    return absl::OkStatus();
  }));
  std::sort(unused.begin(), unused.end());
  BRAID_RETURN_IF_ERROR(RemoveUnlinkedLocked());
  for (const auto& [used, path] : unused) {
    BRAID_ASSIGN_OR_RETURN(copied, CopiedBytes());
    if (copied + bytes <= max_bytes_) {
      return absl::OkStatus();
    }
    in_use_.erase(fs::path(path).filename().native());
    BRAID_RETURN_IF_ERROR(RemoveTree(path));
    BRAID_RETURN_IF_ERROR(RemoveUnlinkedLocked());
  }
  BRAID_ASSIGN_OR_RETURN(copied, CopiedBytes());
  if (copied + bytes <= max_bytes_) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "copies of objects in use have ", copied, " bytes, and ", bytes, " more would exceed ",
      max_bytes_, " bytes (wait for other jobs, or use a larger --data_cache_bytes)"));
}

absl::Status ObjectCopies::RemoveUnlinked() {
  const absl::MutexLock lock(&mu_);
  return RemoveUnlinkedLocked();
}

absl::Status ObjectCopies::RemoveUnlinkedLocked() {
  return ForEachEntry(ObjectsDirectory(), [&](const std::string& path) -> absl::Status {
    mu_.AssertHeld();
    const auto about = StatOf(path);
    if (!about.ok() || about->st_nlink > 1 || absl::EndsWith(path, kTemporary) ||
        wanted_.contains(fs::path(path).filename().native())) {
      return absl::OkStatus();
    }
    return RemoveTree(path);
  });
}

}  // namespace braid

#include "server/storage/shared_regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/file_descriptor.h"

namespace braid {
namespace {

constexpr size_t kLongestName = 1024;
constexpr size_t kLongestKey = 255;
// Objects that this process, NCCL, LibTorch, the CUDA driver and the C library (semaphores) make
// for themselves.
constexpr absl::string_view kInternal[] = {"braid", "nccl", "torch_", "cuda", "sem."};

// Triton's clients leave the '/' out or not, as they do for shm_open().
absl::string_view ObjectOf(absl::string_view key) {
  absl::ConsumePrefix(&key, "/");
  return key;
}

absl::Status CheckNames(const std::string& name, const std::string& key) {
  if (name.empty() || name.size() > kLongestName) {
    return InvalidField("name",
                        absl::StrCat("has ", name.size(), " bytes; expected 1 to ", kLongestName));
  }
  const absl::string_view object = ObjectOf(key);
  const bool plain = !object.empty() && key.size() <= kLongestKey &&
                     !absl::StrContains(object, '/') && !absl::StrContains(object, "..") &&
                     !absl::StrContains(object, '\0');
  if (!plain) {
    return InvalidField("key", absl::StrCat("'", Excerpt(key),
                                            "' is no key of shared memory; expected a name of "
                                            "at most ",
                                            kLongestKey,
                                            " bytes without '..', and without '/' but "
                                            "for the first byte"));
  }
  for (const absl::string_view prefix : kInternal) {
    if (absl::StartsWith(object, prefix)) {
      return InvalidField("key", absl::StrCat("keys that begin with '/", prefix,
                                              "' are not for clients; expected another"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GuardedMapping>> Open(const std::string& key, uint64_t offset,
                                                     uint64_t bytes) {
  const FileDescriptor file(shm_open(absl::StrCat("/", ObjectOf(key)).c_str(), O_RDWR, 0));
  struct stat facts = {};
  if (file.get() < 0 || fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return absl::NotFoundError(
        absl::StrCat("key: there is no shared memory '", key, "' that this server may use"));
  }
  const auto size = static_cast<uint64_t>(facts.st_size);
  if (bytes == 0) {
    return InvalidField("byte_size", "is 0; expected at least 1");
  }
  if (offset > size || bytes > size - offset) {
    return InvalidField("byte_size", absl::StrCat(bytes, " bytes at offset ", offset,
                                                  " are not within the shared memory '", key, "'"));
  }
  return GuardedMapping::Map(file.get(), offset, bytes);
}

}  // namespace

absl::Status SharedRegions::Register(const std::string& name, const std::string& key,
                                     uint64_t offset, uint64_t bytes) {
  BRAID_RETURN_IF_ERROR(CheckNames(name, key));
  const absl::MutexLock lock(&mu_);
  if (regions_.contains(name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("name: a shared memory region '", Excerpt(name), "' is registered already"));
  }
  BRAID_ASSIGN_OR_RETURN(auto mapping, Open(key, offset, bytes));
  regions_[name] =
      std::make_shared<const SharedRegion>(SharedRegion{name, key, offset, std::move(mapping)});
  return absl::OkStatus();
}

void SharedRegions::Unregister(absl::string_view name) {
  std::map<std::string, std::shared_ptr<const SharedRegion>, std::less<>> gone;  // after the lock
  const absl::MutexLock lock(&mu_);
  if (name.empty()) {
    gone.swap(regions_);
  } else if (const auto found = regions_.find(name); found != regions_.end()) {
    gone.insert(regions_.extract(found));
  }
}

absl::StatusOr<std::vector<std::shared_ptr<const SharedRegion>>> SharedRegions::List(
    absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const SharedRegion>> listed;
  for (const auto& [other, region] : regions_) {
    if (name.empty() || name == other) {
      listed.push_back(region);
    }
  }
  if (listed.empty() && !name.empty()) {
    return absl::NotFoundError(
        absl::StrCat("name: there is no shared memory region '", Excerpt(name), "'"));
  }
  return listed;
}

absl::StatusOr<SharedSlice> SharedRegions::Find(absl::string_view name, int64_t offset,
                                                int64_t bytes, absl::string_view field) const {
  SharedSlice slice;
  {
    const absl::MutexLock lock(&mu_);
    const auto found = regions_.find(name);
    if (found == regions_.end()) {
      return InvalidField(field, absl::StrCat("there is no shared memory region '", Excerpt(name),
                                              "'; expected one that is registered"));
    }
    slice.region = found->second;
  }
  BRAID_RETURN_IF_ERROR(CheckWhole(slice));
  const size_t size = slice.region->mapping->bytes();
  if (offset < 0 || bytes < 0 || static_cast<size_t>(offset) > size ||
      static_cast<size_t>(bytes) > size - static_cast<size_t>(offset)) {
    return InvalidField(field, absl::StrCat(bytes, " bytes at offset ", offset,
                                            " are not within the shared memory region '", name,
                                            "', which has ", size));
  }
  slice.offset = static_cast<size_t>(offset);
  slice.bytes = static_cast<size_t>(bytes);
  return slice;
}

absl::Status CheckWhole(const SharedSlice& slice) {
  if (!slice.region->mapping->damaged()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory region '", slice.region->name,
                   "' has lost memory since it was registered; expected it to keep its size"));
}

}  // namespace braid

#include "server/shared_memory/shared_regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/file_descriptor.h"

namespace braid {
namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxKeyBytes = 255;
// Prefixes of objects that this server, NCCL, LibTorch, the CUDA driver and the C library
// (semaphores) create.
constexpr absl::string_view kReservedPrefixes[] = {"braid", "nccl", "torch_", "cuda", "sem."};

// Removes the leading '/', which is optional in Triton's clients.
absl::string_view ObjectOf(absl::string_view key) {
  absl::ConsumePrefix(&key, "/");
  return key;
}

absl::Status CheckName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return InvalidField("name",
                        absl::StrCat(name.size(), " bytes (expected 1 to ", kMaxNameBytes, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const std::string& key) {
  const absl::string_view object = ObjectOf(key);
  const bool plain = !object.empty() && key.size() <= kMaxKeyBytes &&
                     !absl::StrContains(object, '/') && !absl::StrContains(object, "..") &&
                     !absl::StrContains(object, '\0');
  if (!plain) {
    return InvalidField(
        "key", absl::StrCat("invalid shared memory key '", Excerpt(key), "' (expected at most ",
                            kMaxKeyBytes, " bytes without '..', and '/' only as the first byte)"));
  }
  for (const absl::string_view prefix : kReservedPrefixes) {
    if (absl::StartsWith(object, prefix)) {
      return InvalidField("key", absl::StrCat("'", Excerpt(key),
                                              "' is reserved (expected a key that does "
                                              "not start with '/",
                                              prefix, "')"));
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
        absl::StrCat("key: no shared memory object '", key, "' that this server may use"));
  }
  const auto size = static_cast<uint64_t>(facts.st_size);
  if (bytes == 0) {
    return InvalidField("byte_size", "0 (expected at least 1)");
  }
  if (offset > size || bytes > size - offset) {
    return InvalidField(
        "byte_size", absl::StrCat(bytes, " bytes at offset ", offset, " exceed the shared memory '",
                                  key, "' of ", size, " bytes"));
  }
  return GuardedMapping::Map(file.get(), offset, bytes);
}

RegionKind KindOf(const SharedRegion& region) {
  return region.mapping != nullptr ? RegionKind::kSystem : RegionKind::kGpu;
}

}  // namespace

absl::Status SharedSlice::Read(void* to) const {
  if (region->gpu_memory != nullptr) {
    return region->gpu_memory->Read(offset, bytes, to);
  }
  std::memcpy(to, data(), bytes);
  return absl::OkStatus();
}

absl::Status SharedSlice::Write(size_t at, size_t count, const void* from) const {
  if (region->gpu_memory != nullptr) {
    return region->gpu_memory->Write(offset + at, count, from);
  }
  std::memcpy(data() + at, from, count);
  return absl::OkStatus();
}

absl::Status SharedRegions::CheckFree(const std::string& name) const {
  if (regions_.contains(name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("name: shared memory region '", Excerpt(name), "' is already registered"));
  }
  if (regions_.size() >= GuardedMapping::kMaxMappings) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "name: too many shared memory regions (at most ", GuardedMapping::kMaxMappings, ")"));
  }
  return absl::OkStatus();
}

absl::Status SharedRegions::RegisterSystem(const std::string& name, const std::string& key,
                                           uint64_t offset, uint64_t bytes) {
  BRAID_RETURN_IF_ERROR(CheckName(name));
  BRAID_RETURN_IF_ERROR(CheckKey(key));
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(CheckFree(name));
  auto region = std::make_shared<SharedRegion>();
  BRAID_ASSIGN_OR_RETURN(region->mapping, Open(key, offset, bytes));
  region->name = name;
  region->bytes = bytes;
  region->key = key;
  region->offset = offset;
  regions_[name] = std::move(region);
  return absl::OkStatus();
}

absl::Status SharedRegions::RegisterGpu(const std::string& name, const std::string& handle,
                                        int64_t gpu, uint64_t bytes) {
  BRAID_RETURN_IF_ERROR(CheckName(name));
  if (gpu < 0 || gpu >= gpu_memory_.gpus) {
    return InvalidField("device_id", absl::StrCat("unknown GPU ", gpu, " (expected 0 to ",
                                                  gpu_memory_.gpus - 1, ")"));
  }
  auto region = std::make_shared<SharedRegion>();
  // Opened before requests have to wait for the lock: the first use of a GPU takes a while.
  BRAID_ASSIGN_OR_RETURN(region->gpu_memory, gpu_memory_.open(handle, static_cast<int>(gpu)));
  if (bytes == 0 || bytes > region->gpu_memory->bytes()) {
    return InvalidField("byte_size",
                        absl::StrCat(bytes, " (expected 1 to ", region->gpu_memory->bytes(),
                                     ", the size of the allocation)"));
  }
  region->name = name;
  region->bytes = bytes;
  region->gpu = static_cast<int>(gpu);
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(CheckFree(name));
  regions_[name] = std::move(region);
  return absl::OkStatus();
}

void SharedRegions::Unregister(RegionKind kind, absl::string_view name) {
  std::vector<std::shared_ptr<const SharedRegion>> removed;  // destroyed after the lock is released
  const absl::MutexLock lock(&mu_);
  for (auto region = regions_.begin(); region != regions_.end();) {
    if (KindOf(*region->second) == kind && (name.empty() || name == region->first)) {
      removed.push_back(std::move(region->second));
      region = regions_.erase(region);
    } else {
      ++region;
    }
  }
}

absl::StatusOr<std::vector<std::shared_ptr<const SharedRegion>>> SharedRegions::List(
    RegionKind kind, absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const SharedRegion>> listed;
  for (const auto& [other, region] : regions_) {
    if (KindOf(*region) == kind && (name.empty() || name == other)) {
      listed.push_back(region);
    }
  }
  if (listed.empty() && !name.empty()) {
    return absl::NotFoundError(
        absl::StrCat("name: no shared memory region '", Excerpt(name), "' of this kind"));
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
      return InvalidField(field, absl::StrCat("unknown shared memory region '", Excerpt(name),
                                              "' (register it first)"));
    }
    slice.region = found->second;
  }
  BRAID_RETURN_IF_ERROR(CheckWhole(slice));
  const size_t size = slice.region->bytes;
  if (offset < 0 || bytes < 0 || static_cast<size_t>(offset) > size ||
      static_cast<size_t>(bytes) > size - static_cast<size_t>(offset)) {
    return InvalidField(
        field, absl::StrCat(bytes, " bytes at offset ", offset,
                            " exceed the shared memory region '", name, "' of ", size, " bytes"));
  }
  slice.offset = static_cast<size_t>(offset);
  slice.bytes = static_cast<size_t>(bytes);
  return slice;
}

absl::Status CheckWhole(const SharedSlice& slice) {
  if (slice.region->mapping == nullptr || !slice.region->mapping->damaged()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory region '", slice.region->name,
                   "' was truncated (its object must keep its size while it is registered)"));
}

}  // namespace braid

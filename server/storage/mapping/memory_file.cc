#include "server/storage/mapping/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/input_file.h"

namespace braid {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

}  // namespace

absl::StatusOr<MemoryFile> MemoryFile::Create(const std::string& name, absl::string_view bytes) {
  const auto failure = [&name](const char* what) {
    return absl::ErrnoToStatus(errno, absl::StrCat("'", name, "' in memory: ", what));
  };
  FileDescriptor file(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) {
    return failure("memfd_create");
  }
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return failure("write");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    return failure("fcntl");
  }
  return MemoryFile(std::move(file));
}

absl::StatusOr<MemoryFile> MemoryFile::Copy(const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kNoLimit));
  return Create(std::filesystem::path(path).filename(), bytes);
}

absl::Status MemoryFile::WriteTo(ByteSink* sink) const {
  BRAID_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path(), kNoLimit));
  return sink->Write(bytes);
}

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", file_.get()); }

}  // namespace braid

#include "server/storage/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/file_descriptor.h"
#include "server/storage/file_error.h"
#include "server/storage/file_sink.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

std::string ParentOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

absl::Status WriteAndFinish(const std::string& path, absl::string_view bytes) {
  BRAID_ASSIGN_OR_RETURN(FileSink sink, FileSink::Create(path));
  BRAID_RETURN_IF_ERROR(sink.Write(bytes));
  return sink.Finish();
}

absl::StatusOr<std::vector<std::string>> ListAll(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator child(directory, error), end; !error && child != end;
       child.increment(error)) {
    names.push_back(child->path().filename());
  }
  if (error) {
    return FileError(error.value(), "list", directory);
  }
  return names;
}

}  // namespace

absl::Status MakeDirectories(const std::string& directory) {
  std::error_code error;
  if (fs::is_directory(directory, error)) {
    return absl::OkStatus();
  }
  const std::string parent = ParentOf(directory);
  if (parent != "." && parent != directory) {
    BRAID_RETURN_IF_ERROR(MakeDirectories(parent));
  }
  if (mkdir(directory.c_str(), 0777) != 0) {
    const int code = errno;
    if (code != EEXIST || !fs::is_directory(directory, error)) {
      return FileError(code, "create directory", directory);
    }
  }
  return SyncDirectory(parent);
}

absl::Status SyncDirectory(const std::string& directory) {
  const FileDescriptor opened(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0 || fsync(opened.get()) != 0) {
    return FileError(errno, "sync directory", directory);
  }
  return absl::OkStatus();
}

absl::Status RenameDurably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    return FileError(errno, absl::StrCat("rename '", from, "' to"), to);
  }
  return SyncDirectory(ParentOf(to));
}

// Does not use std::filesystem::remove_all(), because LibTorch may export a broken copy of it.
absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListAll(path));
    for (const std::string& name : names) {
      BRAID_RETURN_IF_ERROR(RemoveTree(absl::StrCat(path, "/", name)));
    }
  }
  if (std::remove(path.c_str()) != 0 && errno != ENOENT) {
    return FileError(errno, "remove", path);
  }
  return absl::OkStatus();
}

absl::Status WriteFileDurably(const std::string& path, absl::string_view bytes) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteAndFinish(temporary, bytes);
  if (status.ok()) {
    status = RenameDurably(temporary, path);
  }
  if (!status.ok()) {
    std::remove(temporary.c_str());
  }
  return status;
}

absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& directory) {
  BRAID_ASSIGN_OR_RETURN(std::vector<std::string> names, ListAll(directory));
  std::erase_if(names, [&](const std::string& name) {
    std::error_code error;
    return !fs::is_directory(fs::path(directory) / name, error);
  });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace braid

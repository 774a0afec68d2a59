// A file that is in memory alone, for readers that want a path.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/byte_sink.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Nobody can change it. Thread-safe.
class MemoryFile {
 public:
  // `name`: what the process's list of open files shows.
  static absl::StatusOr<MemoryFile> Create(const std::string& name, absl::string_view bytes);
  // What the file `path` holds now.
  static absl::StatusOr<MemoryFile> Copy(const std::string& path);

  // Of use as long as this object is there, in this process.
  std::string path() const;
  // What the sink returns if it fails.
  absl::Status WriteTo(ByteSink* sink) const;

 private:
  explicit MemoryFile(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

}  // namespace braid

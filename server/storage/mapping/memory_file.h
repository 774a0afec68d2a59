// File in memory, for readers that need a path.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/byte_sink.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Immutable. Thread-safe.
class MemoryFile {
 public:
  // Creates a file with `bytes`. `name` appears in the process's list of open files.
  static absl::StatusOr<MemoryFile> Create(const std::string& name, absl::string_view bytes);
  // Creates a file with the current contents of `path`.
  static absl::StatusOr<MemoryFile> Copy(const std::string& path);

  // Valid in this process and as long as this object.
  std::string path() const;
  // Writes the contents. Returns the sink's error.
  absl::Status WriteTo(ByteSink* sink) const;

 private:
  explicit MemoryFile(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

}  // namespace braid

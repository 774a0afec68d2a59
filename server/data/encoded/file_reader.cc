#include "server/data/encoded/file_reader.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/data_file.h"
#include "server/data/data_paths.h"

namespace braid {

absl::StatusOr<std::string> FileReader::Read(absl::string_view path) const {
  absl::StatusOr<std::string> bytes = ReadLocal(std::string(path));
  return bytes.ok() || copy_ == nullptr ? std::move(bytes) : copy_->NameObjects(bytes.status());
}

absl::StatusOr<std::string> FileReader::ReadLocal(const std::string& path) const {
  // Resolves links, so that a path cannot lead elsewhere.
  BRAID_ASSIGN_OR_RETURN(const std::string resolved,
                         ResolveDataPath(path, roots_, "path", directory_));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const DataFile> file, DataFile::Open(resolved));
  if (file->bytes() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", Excerpt(path), "' has ", file->bytes(),
                                                   " bytes (expected at most ", kMaxBytes, ")"));
  }
  return file->Read(0, static_cast<size_t>(file->bytes()));
}

}  // namespace braid

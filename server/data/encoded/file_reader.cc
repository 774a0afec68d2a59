#include "server/data/encoded/file_reader.h"

#include <filesystem>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/data_file.h"
#include "server/data/data_paths.h"

namespace braid {

absl::StatusOr<std::string> FileReader::Read(absl::string_view path) const {
  const std::string text(path);
  // The check that follows resolves links, so that a path cannot lead elsewhere.
  BRAID_ASSIGN_OR_RETURN(const std::string resolved,
                         ResolveDataPath(std::filesystem::path(directory_) / text, roots_, "path"));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const DataFile> file, DataFile::Open(resolved));
  if (file->bytes() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", Excerpt(text), "' has ", file->bytes(),
                                                   " bytes (expected at most ", kMaxBytes, ")"));
  }
  return file->Read(0, static_cast<size_t>(file->bytes()));
}

}  // namespace braid

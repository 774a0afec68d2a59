// Opens data sources by path, below the directories that the operator allows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/data/data_source.h"

namespace braid {

struct DataDirectories {
  // Directories of data that clients may read. Relative paths start at the first one.
  std::vector<std::string> roots;
  // Existing directory for unpacked arrays.
  std::string scratch;
};

// Opens a file or a directory. The files of a directory are tables with the same columns, which are
// read in the order of their names, or arrays, each of which is a column. Names that start with '.'
// or '_' are skipped. A directory may also be a folder of images (encoded/image_folder.h). Errors
// start with `field`; INVALID_ARGUMENT if the format is not supported.
absl::StatusOr<std::unique_ptr<DataSource>> OpenDataSource(const std::string& path,
                                                           const DataDirectories& directories,
                                                           absl::string_view field);

// Returns the directory where relative paths in the rows of a data set start: the data set itself,
// or the directory of its file. Errors as OpenDataSource().
absl::StatusOr<std::string> FolderOf(const std::string& path, const std::vector<std::string>& roots,
                                     absl::string_view field);

// Data set in a listing.
struct ListedData {
  // Relative to the listed directory.
  std::string name;
  bool directory = false;
  int64_t bytes = 0;
};

// Lists the files of known formats and the directories in `path`, sorted by name. "" is the first
// root.
absl::StatusOr<std::vector<ListedData>> ListData(const std::string& path,
                                                 const std::vector<std::string>& roots,
                                                 absl::string_view field);

}  // namespace braid

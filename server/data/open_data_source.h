// Opens data sources by path, below the directories that the operator allows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/data/data_source.h"
#include "server/remote/object_copies.h"
#include "server/remote/object_store.h"

namespace braid {

// Data in S3 that clients may read and write. The pointers outlive their users.
struct RemoteData {
  // Prefixes as ParseObjectPath() returns them.
  std::vector<std::string> prefixes;
  const ObjectStore* store = nullptr;
  ObjectCopies* copies = nullptr;
};

struct DataDirectories {
  // Directories of data that clients may read. Relative paths start at the first one in which they
  // exist.
  std::vector<std::string> roots;
  // Existing directory for unpacked arrays.
  std::string scratch;
  // Null: none.
  const RemoteData* remote = nullptr;
};

// Returns the progress of a call that waits for the copy of `path`: DEADLINE_EXCEEDED after 10 s
// from now.
CopyProgress StopAfterWait(const std::string& path);

// Opens a file or a directory. The files of a directory are tables with the same columns, which are
// read in the order of their names, or arrays, each of which is a column. Names that start with '.'
// or '_' are skipped. A directory may also be a folder of images (encoded/image_folder.h). Errors
// start with `field`; INVALID_ARGUMENT if the format is not supported.
//
// A path that starts with "s3://" is that of an object, or of the objects below a prefix, which are
// read from local copies. Blocks until they are copied: see ObjectCopies::Copy(). Without
// `progress`, that of StopAfterWait(); what is copied by then is kept.
absl::StatusOr<std::unique_ptr<DataSource>> OpenDataSource(const std::string& path,
                                                           const DataDirectories& directories,
                                                           absl::string_view field,
                                                           const CopyProgress& progress = nullptr);

// Checks a path that starts with "s3://", of data or of an output. Returns it without "s3://".
// INVALID_ARGUMENT if it is not below an allowed prefix; FAILED_PRECONDITION if there are none.
absl::StatusOr<std::string> ResolveRemotePath(const std::string& path, const RemoteData* remote,
                                              absl::string_view field);

// Returns the directory where relative paths in the rows of a dataset start: the dataset itself,
// or the directory of its file. Errors as OpenDataSource().
absl::StatusOr<std::string> FolderOf(const std::string& path, const std::vector<std::string>& roots,
                                     absl::string_view field);

// Dataset in a listing.
struct ListedData {
  // Relative to the listed directory.
  std::string name;
  bool directory = false;
  int64_t bytes = 0;
};

// Lists the files of known formats and the directories in `path`, sorted by name. "" is all
// roots; of entries with the same name, it lists that of the first root.
absl::StatusOr<std::vector<ListedData>> ListData(const std::string& path,
                                                 const std::vector<std::string>& roots,
                                                 absl::string_view field);
// Same for a path that starts with "s3://". Knows the formats of objects by their suffixes. A
// prefix without objects does not exist, except one of `remote`, whose list is empty.
absl::StatusOr<std::vector<ListedData>> ListRemoteData(const std::string& path,
                                                       const RemoteData* remote,
                                                       absl::string_view field);

}  // namespace braid

// Folders of image files as data sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/data/data_source.h"

namespace braid {

// Returns true if the file's name has the suffix of an image: .jpg, .jpeg, .png or .webp, in any
// case.
bool IsImageFile(absl::string_view path);

// Returns true if a directory holds image files or directories, and no file of another format, for
// which `is_data` returns true. Leaves out names that start with '.', and files that start with
// '_'.
bool IsImageFolder(const std::string& directory,
                   absl::FunctionRef<bool(const std::string& path)> is_data);

// Opens a folder of images as torchvision's ImageFolder does: directory/<class>/…/<file>. Columns:
//   image  binary   bytes of the file
//   label  int64    index of the class, in the order of the sorted names of the folders
//   class  string   name of the folder
//   path   string   relative to `directory`
// Rows are sorted by class, then folder, then name of the file. If the images are in `directory`
// itself, there are the columns `image` and `path` only, and all files must be images; files beside
// class folders are ignored. Lists the files once and keeps none open; takes about 8 bytes per row
// and the paths. A link to a file that does not exist is a row, whose bytes cannot be read.
// INVALID_ARGUMENT if a class has no images or a link leaves the roots.
absl::StatusOr<std::unique_ptr<DataSource>> OpenImageFolder(const std::string& directory,
                                                            const std::vector<std::string>& roots);

}  // namespace braid

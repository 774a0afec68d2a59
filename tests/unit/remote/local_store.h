// Store of objects in a directory, without S3.
#pragma once

#include <memory>
#include <string>

#include "arrow/filesystem/filesystem.h"
#include "arrow/filesystem/localfs.h"
#include "server/remote/object_store.h"

namespace braid {

// The directories in `directory` are buckets.
inline std::unique_ptr<ObjectStore> MakeLocalStore(const std::string& directory) {
  return std::make_unique<ObjectStore>(std::make_shared<arrow::fs::SubTreeFileSystem>(
      directory, std::make_shared<arrow::fs::LocalFileSystem>()));
}

}  // namespace braid

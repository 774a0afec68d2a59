#include "server/training/trainer/base_models.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/models/config/version_config.h"
#include "server/storage/file_error.h"
#include "server/storage/model_files.h"
#include "server/training/trainer/checkpoint_format.h"

namespace braid {
namespace {

// Appends what distinguishes the contents of a file that never changes: checkpoints of the same
// base have links to one file.
absl::Status AddIdentity(const std::string& path, std::string* key) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) {
    return FileError(errno, "read", path);
  }
  absl::StrAppend(key, "/", file.st_dev, "-", file.st_ino, "-", file.st_size, "-",
                  file.st_mtim.tv_sec, "-", file.st_mtim.tv_nsec);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedVersion>> BaseModels::Load(
    const std::map<std::string, std::string>& files, const BatchQueue& served) {
  BRAID_ASSIGN_OR_RETURN(const std::string path, BasePath(files));
  // The configuration comes from the served version.
  std::string key = absl::StrCat(served.config().name, "/", served.version());
  BRAID_RETURN_IF_ERROR(AddIdentity(path, &key));
  if (const std::string weights = WeightsBeside(path); std::filesystem::exists(weights)) {
    BRAID_RETURN_IF_ERROR(AddIdentity(weights, &key));
  }
  const absl::MutexLock lock(&mu_);
  std::erase_if(used_, [](const auto& entry) { return entry.second.expired(); });
  if (std::shared_ptr<const LoadedVersion> used = used_[key].lock(); used != nullptr) {
    return used;
  }
  BRAID_ASSIGN_OR_RETURN(LoadedVersion loaded,
                         LoadOnEach({path, "", served.config().name, served.version()},
                                    DeclaredConfig(served.config()), served.replicas().workers()));
  auto base = std::make_shared<const LoadedVersion>(std::move(loaded));
  used_[key] = base;
  return base;
}

}  // namespace braid

#include "server/storage/trainer_directories.h"

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"
#include "server/storage/names.h"
#include "server/storage/staging.h"

namespace braid {
namespace {

constexpr char kSpecName[] = "trainer.json";
constexpr int64_t kMaxSpec = int64_t{1} << 30;

absl::StatusOr<std::string> PathOf(const std::string& root, absl::string_view name) {
  if (!IsPlainName(name)) {
    return InvalidField(
        "name", absl::StrCat("invalid trainer name '", absl::Utf8SafeCHexEscape(Excerpt(name)),
                             "' (expected 1 to 128 letters, digits, '_', '-' and '.', not "
                             "starting with '.')"));
  }
  return absl::StrCat(root, "/", name);
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

}  // namespace

absl::StatusOr<TrainerDirectories> TrainerDirectories::Open(const std::string& data_dir) {
  std::string root = absl::StrCat(data_dir, "/trainers");
  BRAID_RETURN_IF_ERROR(MakeDirectories(root));
  BRAID_RETURN_IF_ERROR(RemoveLeftovers(root));
  return TrainerDirectories(std::move(root));
}

absl::StatusOr<std::vector<std::string>> TrainerDirectories::List() const {
  BRAID_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectories(root_));
  std::erase_if(names, [](const std::string& name) { return !IsPlainName(name); });
  return names;
}

absl::Status TrainerDirectories::WriteSpec(const std::string& name, absl::string_view spec) const {
  BRAID_ASSIGN_OR_RETURN(const std::string path, PathOf(root_, name));
  if (IsDirectory(path)) {
    return WriteFileDurably(absl::StrCat(path, "/", kSpecName), spec);
  }
  BRAID_ASSIGN_OR_RETURN(const std::string staged, Stage(root_, name));
  absl::Status status = WriteFileDurably(absl::StrCat(staged, "/", kSpecName), spec);
  if (status.ok()) {
    status = PutInPlace(root_, name);
  }
  if (!status.ok()) {
    Unstage(root_, name);
  }
  return status;
}

absl::StatusOr<std::string> TrainerDirectories::ReadSpec(const std::string& name) const {
  BRAID_ASSIGN_OR_RETURN(const std::string path, PathOf(root_, name));
  absl::StatusOr<std::string> spec = ReadFile(absl::StrCat(path, "/", kSpecName), kMaxSpec);
  if (absl::IsNotFound(spec.status()) && IsDirectory(path)) {
    return absl::DataLossError(absl::StrCat("'", path, "': missing ", kSpecName));
  }
  return spec;
}

absl::StatusOr<std::string> TrainerDirectories::CheckpointsOf(const std::string& name) const {
  BRAID_ASSIGN_OR_RETURN(const std::string path, PathOf(root_, name));
  return absl::StrCat(path, "/checkpoints");
}

absl::StatusOr<std::string> TrainerDirectories::JournalOf(const std::string& name) const {
  BRAID_ASSIGN_OR_RETURN(const std::string path, PathOf(root_, name));
  return absl::StrCat(path, "/journal");
}

absl::Status TrainerDirectories::Remove(const std::string& name) const {
  BRAID_ASSIGN_OR_RETURN(const std::string path, PathOf(root_, name));
  if (!IsDirectory(path)) {
    return absl::NotFoundError(absl::StrCat("'", path, "': no such directory"));
  }
  return RemoveWhole(root_, name);
}

}  // namespace braid

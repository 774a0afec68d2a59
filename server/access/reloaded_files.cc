#include "server/access/reloaded_files.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr std::streamsize kMaxBytes = 16 << 20;

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::fifo) {
    // To open one waits for who writes to it, for ever.
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": it is a pipe; expected a file"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string bytes(4096, '\0');
  std::string whole;
  while (file && whole.size() <= kMaxBytes) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    whole.append(bytes, 0, static_cast<size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot read ", path, ": ", std::generic_category().message(errno != 0 ? errno : EIO),
        "; expected a file that the server may read"));
  }
  if (whole.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has more than ", kMaxBytes, " bytes, the limit"));
  }
  return whole;
}

bool EverybodyMayRead(const std::string& path) {
  std::error_code error;
  const auto permissions = std::filesystem::status(path, error).permissions();
  return !error &&
         (permissions & std::filesystem::perms::others_read) != std::filesystem::perms::none;
}

}  // namespace

ReloadedFiles::ReloadedFiles(std::vector<ReloadedFile> files, Apply apply)
    : files_(std::move(files)), apply_(std::move(apply)) {}

absl::StatusOr<ReloadedFiles::Contents> ReloadedFiles::Read() const {
  Contents contents;
  for (const ReloadedFile& file : files_) {
    absl::StatusOr<std::string> content = ReadWhole(file.path);
    if (!content.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(file.flag, ": ", content.status().message()));
    }
    contents.push_back(*std::move(content));
  }
  return contents;
}

absl::Status ReloadedFiles::Load() {
  seen_ = judged_ = Read();
  BRAID_RETURN_IF_ERROR(seen_.status());
  return Take(*seen_);
}

void ReloadedFiles::Look() {
  absl::StatusOr<Contents> now = Read();
  const bool settled = now == seen_;
  seen_ = std::move(now);
  if (!settled || seen_ == judged_) {
    return;
  }
  judged_ = seen_;
  const std::string changed = seen_.ok() ? ChangedFlags(*seen_) : "";
  const absl::Status status = seen_.ok() ? Take(*seen_) : seen_.status();
  if (!status.ok()) {
    Log(LogModule::kServer)
        .error("what was read before stays, because of an error: {}",
               std::string(status.message()));
  } else if (!changed.empty()) {
    Log(LogModule::kServer).info("{}: read again, after a change", changed);
  }
}

absl::Status ReloadedFiles::Take(const Contents& contents) {
  BRAID_RETURN_IF_ERROR(apply_(contents));
  taken_ = contents;
  for (const ReloadedFile& file : files_) {
    if (file.secret && EverybodyMayRead(file.path)) {
      Log(LogModule::kServer)
          .warn(
              "{}: every user of the machine may read {}; expected the server alone, as after "
              "chmod o-r",
              file.flag, file.path);
    }
  }
  return absl::OkStatus();
}

std::string ReloadedFiles::ChangedFlags(const Contents& contents) const {
  std::vector<std::string> flags;
  for (size_t i = 0; i < files_.size(); ++i) {
    if (contents[i] != taken_[i]) {
      flags.push_back(files_[i].flag);
    }
  }
  return absl::StrJoin(flags, ", ");
}

}  // namespace braid

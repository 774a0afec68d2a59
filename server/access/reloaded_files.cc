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
    // Opening a pipe would block.
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": it is a pipe (expected a file)"));
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
        " (expected a file that the server may read)"));
  }
  if (whole.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": too large (expected at most ", kMaxBytes, " bytes)"));
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
  last_read_ = last_tried_ = Read();
  BRAID_RETURN_IF_ERROR(last_read_.status());
  return ApplyAll(*last_read_);
}

void ReloadedFiles::Poll() {
  absl::StatusOr<Contents> now = Read();
  const bool settled = now == last_read_;
  last_read_ = std::move(now);
  if (!settled || last_read_ == last_tried_) {
    return;
  }
  last_tried_ = last_read_;
  const std::string changed = last_read_.ok() ? ChangedFlags(*last_read_) : "";
  const absl::Status status = last_read_.ok() ? ApplyAll(*last_read_) : last_read_.status();
  if (!status.ok()) {
    Log(LogModule::kServer)
        .error("reload failed, the previous contents stay in effect: {}",
               std::string(status.message()));
  } else if (!changed.empty()) {
    Log(LogModule::kServer).info("{}: reloaded after a change", changed);
  }
}

absl::Status ReloadedFiles::ApplyAll(const Contents& contents) {
  BRAID_RETURN_IF_ERROR(apply_(contents));
  applied_ = contents;
  for (const ReloadedFile& file : files_) {
    if (file.secret && EverybodyMayRead(file.path)) {
      Log(LogModule::kServer)
          .warn("{}: every user of this machine may read {} (remove the permission with chmod o-r)",
                file.flag, file.path);
    }
  }
  return absl::OkStatus();
}

std::string ReloadedFiles::ChangedFlags(const Contents& contents) const {
  std::vector<std::string> flags;
  for (size_t i = 0; i < files_.size(); ++i) {
    if (contents[i] != applied_[i]) {
      flags.push_back(files_[i].flag);
    }
  }
  return absl::StrJoin(flags, ", ");
}

Reloader::Reloader(std::vector<ReloadedFiles*> files, absl::Duration interval)
    : files_(std::move(files)), thread_([this, interval] { Run(interval); }) {}

Reloader::~Reloader() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void Reloader::Run(absl::Duration interval) {
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stop_), interval)) {
        return;
      }
    }
    for (ReloadedFiles* files : files_) {
      files->Poll();
    }
  }
}

}  // namespace braid

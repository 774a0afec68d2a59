#include "server/access/reloaded_files.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr std::streamsize kMostBytes = 16 << 20;

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string bytes(4096, '\0');
  std::string whole;
  while (file && whole.size() <= kMostBytes) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    whole.append(bytes, 0, static_cast<size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot read ", path, ": ", std::generic_category().message(errno != 0 ? errno : EIO),
        "; expected a file that the server may read"));
  }
  if (whole.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has more than ", kMostBytes, " bytes, the limit"));
  }
  return whole;
}

}  // namespace

ReloadedFiles::ReloadedFiles(std::string what, std::vector<std::string> paths, Apply apply)
    : what_(std::move(what)), paths_(std::move(paths)), apply_(std::move(apply)) {}

absl::StatusOr<ReloadedFiles::Contents> ReloadedFiles::Read() const {
  Contents contents;
  for (const std::string& path : paths_) {
    BRAID_ASSIGN_OR_RETURN(contents.emplace_back(), ReadWhole(path));
  }
  return contents;
}

absl::Status ReloadedFiles::Load() {
  seen_ = judged_ = Read();
  BRAID_RETURN_IF_ERROR(seen_.status());
  return apply_(*seen_);
}

void ReloadedFiles::Look() {
  absl::StatusOr<Contents> now = Read();
  const bool settled = now == seen_;
  seen_ = std::move(now);
  if (settled && seen_ != judged_) {
    judged_ = seen_;
    Take(seen_);
  }
}

void ReloadedFiles::Take(const absl::StatusOr<Contents>& contents) {
  const absl::Status status = contents.ok() ? apply_(*contents) : contents.status();
  if (status.ok()) {
    Log(LogModule::kServer).info("{}: read again, as they have changed", what_);
  } else {
    Log(LogModule::kServer)
        .error("{}: what was read before stays, because of an error: {}", what_,
               std::string(status.message()));
  }
}

}  // namespace braid

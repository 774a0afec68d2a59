#include "server/storage/staging.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/storage/files.h"

namespace braid {
namespace {

constexpr absl::string_view kStaged = ".tmp-";
constexpr absl::string_view kReplaced = ".old-";

std::string PathOf(const std::string& parent, absl::string_view prefix, absl::string_view name) {
  return absl::StrCat(parent, "/", prefix, name);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::Status RemoveLeftover(const std::string& parent, absl::string_view child) {
  const std::string path = PathOf(parent, "", child);
  if (absl::ConsumePrefix(&child, kReplaced) && !Exists(PathOf(parent, "", child))) {
    return RenameDurably(path, PathOf(parent, "", child));
  }
  return RemoveTree(path);
}

}  // namespace

absl::StatusOr<std::string> Stage(const std::string& parent, const std::string& name) {
  std::string staged = PathOf(parent, kStaged, name);
  BRAID_RETURN_IF_ERROR(RemoveTree(staged));
  BRAID_RETURN_IF_ERROR(MakeDirectories(staged));
  return staged;
}

absl::Status PutInPlace(const std::string& parent, const std::string& name) {
  const std::string staged = PathOf(parent, kStaged, name);
  const std::string replaced = PathOf(parent, kReplaced, name);
  const std::string place = PathOf(parent, "", name);
  BRAID_RETURN_IF_ERROR(SyncDirectory(staged));
  if (!Exists(place)) {
    return RenameDurably(staged, place);
  }
  BRAID_RETURN_IF_ERROR(RemoveTree(replaced));
  BRAID_RETURN_IF_ERROR(RenameDurably(place, replaced));
  if (absl::Status status = RenameDurably(staged, place); !status.ok()) {
    if (!Exists(place)) {
      status.Update(RenameDurably(replaced, place));
    }
    return status;
  }
  // Leftovers are removed at the next start.
  RemoveTree(replaced).IgnoreError();
  return absl::OkStatus();
}

void Unstage(const std::string& parent, const std::string& name) {
  RemoveTree(PathOf(parent, kStaged, name)).IgnoreError();
}

absl::Status RemoveWhole(const std::string& parent, const std::string& name) {
  std::string staged = PathOf(parent, kStaged, name);
  BRAID_RETURN_IF_ERROR(RemoveTree(staged));
  BRAID_RETURN_IF_ERROR(RenameDurably(PathOf(parent, "", name), staged));
  return RemoveTree(staged);
}

absl::Status RemoveLeftovers(const std::string& parent) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> children, ListDirectories(parent));
  for (const std::string& child : children) {
    if (absl::StartsWith(child, kStaged) || absl::StartsWith(child, kReplaced)) {
      BRAID_RETURN_IF_ERROR(RemoveLeftover(parent, child));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid

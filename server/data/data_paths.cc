#include "server/data/data_paths.h"

#include <algorithm>
#include <climits>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Both paths are canonical.
bool IsBelow(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

bool IsBelowAny(const fs::path& path, const std::vector<std::string>& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    std::error_code error;
    const fs::path canonical = fs::canonical(root, error);
    return !error && IsBelow(path, canonical);
  });
}

// Returns the first root in which a relative path exists; the first one if there is none.
const std::string& StartOf(const std::string& path, const std::vector<std::string>& roots) {
  const auto found = std::find_if(roots.begin(), roots.end(), [&](const std::string& root) {
    return ResolvesBelowAny((fs::path(root) / path).native(), roots);
  });
  return found == roots.end() ? roots.front() : *found;
}

// Checks a path before the file system sees it. `joined`: the path with its root.
absl::Status CheckText(const std::string& path, const fs::path& joined, absl::string_view field) {
  if (absl::StrContains(path, '\0')) {
    return InvalidField(field, "path with a NUL character (expected a path)");
  }
  const bool long_name = std::any_of(joined.begin(), joined.end(), [](const fs::path& name) {
    return name.native().size() > NAME_MAX;
  });
  if (long_name || joined.native().size() >= PATH_MAX) {
    return InvalidField(
        field, absl::StrCat("'", Excerpt(path), "' is too long (expected names of at most ",
                            NAME_MAX, " bytes, and fewer than ", PATH_MAX, " bytes in all)"));
  }
  return absl::OkStatus();
}

// Returns true if links below `root` lead in a circle. Says nothing about other directories.
bool HasLoop(const std::error_code& error, const fs::path& path, const fs::path& root) {
  return error == std::errc::too_many_symbolic_link_levels &&
         IsBelow(path.lexically_normal(), (root / "").lexically_normal().parent_path());
}

absl::Status LoopError(const std::string& path, absl::string_view field) {
  return InvalidField(field, absl::StrCat("'", Excerpt(path),
                                          "' contains a symlink loop (expected links that end at a "
                                          "file or directory)"));
}

}  // namespace

absl::StatusOr<std::string> ResolveDataPath(const std::string& path,
                                            const std::vector<std::string>& roots,
                                            absl::string_view field, const std::string& start) {
  if (roots.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        field,
        ": the server has no data root (expected braid-server --data_root=DIR, or a path "
        "s3://BUCKET/KEY below --s3_allow)"));
  }
  const std::string& first = start.empty() ? roots.front() : start;
  BRAID_RETURN_IF_ERROR(CheckText(path, fs::path(first) / path, field));
  const fs::path joined = fs::path(start.empty() ? StartOf(path, roots) : start) / path;
  std::error_code error;
  // Resolves links of the parts that exist. The check comes before the one for existence, so that
  // clients cannot ask what exists elsewhere.
  const fs::path resolved = fs::weakly_canonical(joined, error);
  if (HasLoop(error, joined, roots.front())) {
    return LoopError(path, field);
  }
  if (error || !IsBelowAny(resolved, roots)) {
    return InvalidField(field, OutsideRootsError(path, roots).message());
  }
  if (!fs::exists(resolved, error)) {
    return absl::NotFoundError(absl::StrCat(field, ": '", Excerpt(path),
                                            "' does not exist (expected a file or directory in ",
                                            absl::StrJoin(roots, " or "), ")"));
  }
  return resolved.string();
}

absl::StatusOr<std::string> ResolveOutputPath(const std::string& path, const std::string& root,
                                              absl::string_view field) {
  const fs::path joined = fs::path(root) / path;
  BRAID_RETURN_IF_ERROR(CheckText(path, joined, field));
  std::error_code error;
  const fs::path canonical_root = fs::weakly_canonical(root, error);
  const std::string resolved = fs::weakly_canonical(joined, error).string();
  if (HasLoop(error, joined, root)) {
    return LoopError(path, field);
  }
  // A trailing '/' stays, after which filename() is empty.
  const fs::path place =
      absl::EndsWith(resolved, "/") ? fs::path(resolved).parent_path() : fs::path(resolved);
  if (error || !IsBelow(place, canonical_root) || place == canonical_root) {
    return InvalidField(
        field, absl::StrCat("'", Excerpt(path),
                            "' leaves the output directory (expected a path below ", root, ")"));
  }
  return absl::EndsWith(path, "/") ? absl::StrCat(place.native(), "/") : place.native();
}

bool ResolvesBelowAny(const std::string& path, const std::vector<std::string>& roots) {
  std::error_code error;
  const fs::path resolved = fs::canonical(path, error);
  return !error && IsBelowAny(resolved, roots);
}

absl::Status OutsideRootsError(absl::string_view path, const std::vector<std::string>& roots) {
  return absl::InvalidArgumentError(absl::StrCat("'", Excerpt(path),
                                                 "' leaves the data roots (expected a path below ",
                                                 absl::StrJoin(roots, " or "), ")"));
}

}  // namespace braid

#include "server/base/atomic_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace braid {

absl::Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << text;
    file.close();
    if (!file) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot write '", temporary, "'"));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot create '", path, "'"));
    std::remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace braid

#include "server/base/atomic_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace braid {

absl::Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string beside = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream file(beside, std::ios::trunc);
    file << text;
    file.close();
    if (!file) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot write '", beside, "'"));
    }
  }
  if (std::rename(beside.c_str(), path.c_str()) != 0) {
    absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot make '", path, "'"));
    std::remove(beside.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace braid

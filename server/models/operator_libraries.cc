#include "server/models/operator_libraries.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace braid {

absl::Status LoadOperatorLibraries(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's dlerror() is thread-safe.
      return absl::InvalidArgumentError(absl::StrCat("'", path, "' cannot be loaded: ", dlerror()));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid

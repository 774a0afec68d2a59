#include "server/base/random_id.h"

#include <random>

#include "absl/strings/str_format.h"

namespace braid {

std::string RandomId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace braid

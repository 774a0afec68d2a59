#include "client/cpp/random_id.h"

#include <cstdint>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"

namespace braid::client {

std::string RandomId() {
  absl::BitGen random;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

}  // namespace braid::client

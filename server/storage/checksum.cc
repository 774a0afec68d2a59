#include "server/storage/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_cat.h"

namespace braid {

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }

Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::Add(absl::string_view bytes) {
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
}

std::string Checksum::Hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&state_->hash);
  return absl::StrCat(absl::Hex(digest.high64, absl::kZeroPad16),
                      absl::Hex(digest.low64, absl::kZeroPad16));
}

std::string ChecksumOf(absl::string_view bytes) {
  Checksum checksum;
  checksum.Add(bytes);
  return checksum.Hex();
}

}  // namespace braid

// SHA-256, by which tokens and models' files are known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(absl::string_view bytes);
// NOT_FOUND if it cannot be read.
absl::StatusOr<Sha256Digest> Sha256OfFile(const std::string& path);

// 64 hexadecimal digits, as sha256sum prints them. nullopt: it is something else.
std::optional<Sha256Digest> ParseSha256(absl::string_view hex);
std::string Sha256Hex(const Sha256Digest& digest);

// Takes the same time whatever the digests are.
bool SameDigest(const Sha256Digest& left, const Sha256Digest& right);

}  // namespace braid

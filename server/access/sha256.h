// SHA-256 of tokens and model files.
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
// Blocks on the disk. NOT_FOUND if the file cannot be read.
absl::StatusOr<Sha256Digest> Sha256OfFile(const std::string& path);

// Parses 64 hexadecimal digits; nullopt for anything else.
std::optional<Sha256Digest> ParseSha256(absl::string_view hex);
std::string Sha256Hex(const Sha256Digest& digest);

// Compares in constant time.
bool SameDigest(const Sha256Digest& left, const Sha256Digest& right);

}  // namespace braid

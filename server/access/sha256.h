// SHA-256 of tokens, model files and uploaded datasets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

using Sha256Digest = std::array<uint8_t, 32>;

// Computes one digest at a time. Thread-compatible.
class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(const Sha256Hasher&) = delete;
  Sha256Hasher& operator=(const Sha256Hasher&) = delete;

  // Starts a new digest. Called first.
  void Begin();
  void Add(absl::string_view bytes);
  // Returns the digest of the bytes since Begin(). Call Begin() before the next Add().
  Sha256Digest End();

 private:
  struct Context;

  const std::unique_ptr<Context> context_;
};

Sha256Digest Sha256(absl::string_view bytes);
// Blocks on the disk. NOT_FOUND if the file cannot be read.
absl::StatusOr<Sha256Digest> Sha256OfFile(const std::string& path);

// Parses 64 hexadecimal digits; nullopt for anything else.
std::optional<Sha256Digest> ParseSha256(absl::string_view hex);
std::string Sha256Hex(const Sha256Digest& digest);

// Compares in constant time.
bool SameDigest(const Sha256Digest& left, const Sha256Digest& right);

}  // namespace braid

// The identities that a server knows: by the hash of a token, and by the name in a certificate.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/access/identity.h"
#include "server/access/sha256.h"

namespace braid {

// Thread-compatible.
class IdentityTable {
 public:
  // Adds what `text`, the contents of `file`, says; blank lines and those that begin with '#' say
  // nothing. INVALID_ARGUMENT with file, line and what would be right; then some may be added.
  //   role[:model][,role[:model]...] sha256:HEX name
  absl::Status AddTokens(const std::string& file, absl::string_view text);
  //   role[:model][,role[:model]...] IDENTITY
  absl::Status AddCertificates(const std::string& file, absl::string_view text);

  // How many there are.
  size_t tokens() const { return tokens_.size(); }
  size_t certificates() const { return certificates_.size(); }

  // null: there is none.
  std::shared_ptr<const Identity> FindToken(const Sha256Digest& token) const;
  std::shared_ptr<const Identity> FindCertificate(absl::string_view identity) const;

 private:
  // A digest is spread evenly as it is.
  struct DigestHash {
    size_t operator()(const Sha256Digest& digest) const {
      size_t hash = 0;
      std::memcpy(&hash, digest.data(), sizeof(hash));
      return hash;
    }
  };
  struct DigestEqual {
    bool operator()(const Sha256Digest& left, const Sha256Digest& right) const {
      return SameDigest(left, right);
    }
  };

  absl::flat_hash_map<Sha256Digest, std::shared_ptr<const Identity>, DigestHash, DigestEqual>
      tokens_;
  absl::flat_hash_map<std::string, std::shared_ptr<const Identity>> certificates_;
};

}  // namespace braid

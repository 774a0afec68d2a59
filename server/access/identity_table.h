// Table of the known identities, by token hash and by certificate name.
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
  // Adds the identities in `text`, the contents of `file`. Ignores blank lines and lines that start
  // with '#'. INVALID_ARGUMENT with file, line and the expected form; identities of earlier lines
  // may have been added. Lines:
  //   role[:model][,role[:model]...] sha256:HEX name
  absl::Status AddTokens(const std::string& file, absl::string_view text);
  //   role[:model][,role[:model]...] IDENTITY
  absl::Status AddCertificates(const std::string& file, absl::string_view text);

  // Number of entries.
  size_t tokens() const { return tokens_.size(); }
  size_t certificates() const { return certificates_.size(); }

  // Return null if unknown.
  std::shared_ptr<const Identity> FindToken(const Sha256Digest& token) const;
  std::shared_ptr<const Identity> FindCertificate(absl::string_view identity) const;

 private:
  // Digests are uniformly distributed already.
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

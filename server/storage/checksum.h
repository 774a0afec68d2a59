// Checksums of what is stored.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace braid {

// Thread-compatible.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void Add(absl::string_view bytes);
  // Of all that was added: XXH3's 128 bits in hexadecimal, as `xxhsum -H2` prints them.
  std::string Hex() const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

std::string ChecksumOf(absl::string_view bytes);

}  // namespace braid

// XXH3 checksums of stored data.
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
  // Returns the checksum of all added bytes: XXH3's 128 bits in hexadecimal, as `xxhsum -H2`
  // prints.
  std::string Hex() const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

std::string ChecksumOf(absl::string_view bytes);

}  // namespace braid

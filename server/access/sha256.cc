#include "server/access/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "spdlog/spdlog.h"

namespace braid {
namespace {

using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

}  // namespace

Sha256Digest Sha256(absl::string_view bytes) {
  // What OpenSSL takes to look an algorithm up and to make a context is longer than a token's hash.
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  thread_local const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  Sha256Digest digest;
  if (algorithm == nullptr || context == nullptr ||
      EVP_DigestInit_ex2(context.get(), algorithm, nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1) {
    // Out of memory, or an installation without SHA-256: nobody could be told from anybody.
    spdlog::critical("OpenSSL does not compute SHA-256");
    std::abort();
  }
  return digest;
}

std::optional<Sha256Digest> ParseSha256(absl::string_view hex) {
  Sha256Digest digest;
  if (hex.size() != 2 * digest.size() ||
      !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
    return std::nullopt;
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

std::string Sha256Hex(const Sha256Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

bool SameDigest(const Sha256Digest& left, const Sha256Digest& right) {
  return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace braid

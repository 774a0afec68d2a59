#include "server/access/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

void Require(bool done) {
  if (!done) {
    // Out of memory, or OpenSSL without SHA-256. Authentication cannot work.
    Log(LogModule::kServer).critical("OpenSSL cannot compute SHA-256");
    std::abort();
  }
}

}  // namespace

struct Sha256Hasher::Context {
  Context() : evp(EVP_MD_CTX_new()) {}
  ~Context() { EVP_MD_CTX_free(evp); }

  EVP_MD_CTX* const evp;
};

Sha256Hasher::Sha256Hasher() : context_(std::make_unique<Context>()) {}
Sha256Hasher::~Sha256Hasher() = default;

void Sha256Hasher::Begin() {
  // Fetching the algorithm takes longer than hashing a token.
  static const EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Require(kAlgorithm != nullptr && EVP_DigestInit_ex2(context_->evp, kAlgorithm, nullptr) == 1);
}

void Sha256Hasher::Add(absl::string_view bytes) {
  Require(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256Hasher::End() {
  Sha256Digest digest;
  Require(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1);
  return digest;
}

Sha256Digest Sha256(absl::string_view bytes) {
  // Creating a hasher takes longer than hashing a token.
  thread_local Sha256Hasher hasher;
  hasher.Begin();
  hasher.Add(bytes);
  return hasher.End();
}

absl::StatusOr<Sha256Digest> Sha256OfFile(const std::string& path) {
  Sha256Hasher hasher;
  hasher.Begin();
  std::ifstream file;
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {  // opening a pipe would block
    file.open(path, std::ios::binary);
  }
  std::vector<char> piece(1 << 20);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    hasher.Add({piece.data(), static_cast<size_t>(file.gcount())});
  }
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat("cannot read '", path, "'"));
  }
  return hasher.End();
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

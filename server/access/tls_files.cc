#include "server/access/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <climits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/base/status.h"

namespace braid {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

// Replaces the password prompt on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

Bio ReadOnlyBio(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(std::min(pem.size(), size_t{INT_MAX}))),
          &BIO_free};
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& pem,
                                                          absl::string_view flag) {
  const Bio bio = ReadOnlyBio(pem);
  std::vector<Certificate> certificates;
  while (X509* const read = PEM_read_bio_X509(bio.get(), nullptr, &NoPassword, nullptr)) {
    certificates.emplace_back(read, &X509_free);
  }
  // After the last certificate, there must be no further start line.
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !at_end) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", certificates.empty() ? "contains no" : "contains a malformed",
                     " certificate (expected PEM, -----BEGIN CERTIFICATE-----)"));
  }
  return certificates;
}

// Describes why `certificate` is not valid at `now`; empty if it is valid.
std::string ValidityError(const X509& certificate, absl::Time now) {
  time_t seconds = absl::ToTimeT(now);
  const auto at = [](const ASN1_TIME* time) {
    tm parts = {};
    ASN1_TIME_to_tm(time, &parts);
    return absl::FormatTime(absl::FromTM(parts, absl::UTCTimeZone()), absl::UTCTimeZone());
  };
  if (X509_cmp_time(X509_get0_notAfter(&certificate), &seconds) < 0) {
    return absl::StrCat("expired at ", at(X509_get0_notAfter(&certificate)));
  }
  if (X509_cmp_time(X509_get0_notBefore(&certificate), &seconds) > 0) {
    return absl::StrCat("is not valid before ", at(X509_get0_notBefore(&certificate)));
  }
  return "";
}

absl::Status CheckServer(const TlsMaterial& material, absl::Time now) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                         ReadCertificates(material.certificates, "--tls_cert"));
  const Key key(
      PEM_read_bio_PrivateKey(ReadOnlyBio(material.key).get(), nullptr, &NoPassword, nullptr),
      &EVP_PKEY_free);
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        "--tls_key: contains no readable key (expected PEM without a password, "
        "-----BEGIN PRIVATE KEY-----)");
  }
  const bool matches = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!matches) {
    return absl::InvalidArgumentError(
        "--tls_key: does not match the first certificate of --tls_cert");
  }
  for (const Certificate& certificate : chain) {
    if (const std::string why = ValidityError(*certificate, now); !why.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--tls_cert: a certificate ", why));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckClientCa(const TlsMaterial& material, absl::Time now) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<Certificate> authorities,
                         ReadCertificates(material.client_ca, "--tls_client_ca"));
  // A bundle may contain expired authorities.
  std::string why;
  for (const Certificate& authority : authorities) {
    why = ValidityError(*authority, now);
    if (why.empty()) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("--tls_client_ca: the authority ", why));
}

std::vector<ReloadedFile> FilesOf(const TlsFiles::Paths& paths) {
  std::vector<ReloadedFile> files = {{"--tls_cert", paths.certificates},
                                     {"--tls_key", paths.key, /*secret=*/true}};
  if (!paths.client_ca.empty()) {
    files.push_back({"--tls_client_ca", paths.client_ca});
  }
  return files;
}

}  // namespace

absl::Status CheckTlsMaterial(const TlsMaterial& material, absl::Time now) {
  BRAID_RETURN_IF_ERROR(CheckServer(material, now));
  return material.client_ca.empty() ? absl::OkStatus() : CheckClientCa(material, now);
}

TlsFiles::TlsFiles(const Paths& paths)
    : verifies_clients_(!paths.client_ca.empty()),
      files_(FilesOf(paths),
             [this](const ReloadedFiles::Contents& contents) { return Apply(contents); }) {}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Create(const Paths& paths) {
  std::unique_ptr<TlsFiles> tls(new TlsFiles(paths));
  BRAID_RETURN_IF_ERROR(tls->files_.Load());
  return tls;
}

absl::Status TlsFiles::Apply(const ReloadedFiles::Contents& contents) {
  auto material = std::make_shared<TlsMaterial>(
      TlsMaterial{contents[0], contents[1], verifies_clients_ ? contents[2] : ""});
  BRAID_RETURN_IF_ERROR(CheckTlsMaterial(*material, absl::Now()));
  if (verifies_clients_ && material->client_ca.empty()) {
    return absl::InvalidArgumentError("--tls_client_ca: is empty (expected certificates in PEM)");
  }
  const absl::MutexLock lock(&mu_);
  current_ = std::move(material);
  return absl::OkStatus();
}

std::shared_ptr<const TlsMaterial> TlsFiles::current() const {
  const absl::MutexLock lock(&mu_);
  return current_;
}

}  // namespace braid

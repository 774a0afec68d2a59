#include "server/rpc/server/tls_credentials.h"

#include <string>
#include <utility>

#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// gRPC's C++ interface accepts fixed certificates, or files whose reader can replace a valid pair
// by a mismatched one. Its C interface fetches the certificates at each handshake.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsCredentials(const TlsFiles* files)
      : files_(files),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                files->verifies_clients()
                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                &Fetch, this))) {}
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    // rpc/auth/access.h authenticates callers.
    Log(LogModule::kRpc).critical("auth metadata processors are not supported");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC calls it for one connection at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto* const credentials = static_cast<TlsCredentials*>(self);
    const std::shared_ptr<const TlsMaterial> current = credentials->files_->current();
    if (current == credentials->last_sent_) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pair = {current->key.c_str(), current->certificates.c_str()};
    // gRPC requires authorities even if it does not verify clients.
    const std::string& authorities =
        current->client_ca.empty() ? current->certificates : current->client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    credentials->last_sent_ = current;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles* const files_;
  std::shared_ptr<const TlsMaterial> last_sent_;
  // Last member: its construction calls Fetch().
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles* files) {
  return std::make_shared<TlsCredentials>(files);
}

}  // namespace braid

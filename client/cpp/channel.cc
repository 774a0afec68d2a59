#include "client/cpp/channel.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/client_interceptor.h"

namespace braid::client {
namespace {

using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

// Says with each call who makes it. gRPC's own credentials do so over TLS alone, but a server on
// loopback, or behind what has TLS, takes plaintext.
class ShowsToken final : public Interceptor {
 public:
  explicit ShowsToken(std::string value) : value_(std::move(value)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string value_;
};

class ShowsTokens final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit ShowsTokens(const std::string& token) : value_(absl::StrCat("Bearer ", token)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override { return new ShowsToken(value_); }

 private:
  const std::string value_;
};

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const Security& security) {
  if (!security.tls) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security.tls->ca;
  options.pem_cert_chain = security.tls->certificate;
  options.pem_private_key = security.tls->key;
  return grpc::SslCredentials(options);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const Security& security) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Less than the pauses between attempts, so that each finds the channel tried again.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!security.token.empty()) {
    interceptors.push_back(std::make_unique<ShowsTokens>(security.token));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, CredentialsOf(security), arguments, std::move(interceptors));
}

}  // namespace braid::client

// The channel of a client: TLS, credentials, sizes, and how soon it tries again. Internal.
#pragma once

#include <memory>
#include <string>

#include "client/cpp/security.h"
#include "grpcpp/channel.h"

namespace braid::client {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const Security& security);

}  // namespace braid::client

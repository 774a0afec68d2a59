// TLS server credentials whose certificates can be replaced at run time.
#pragma once

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/access/tls_files.h"

namespace braid {

// Uses the certificates that `files` holds at each handshake. If `files` has client authorities,
// clients without a valid certificate are rejected. `files` must outlive the credentials, and the
// credentials must outlive the server, which does not own them.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles* files);

}  // namespace braid

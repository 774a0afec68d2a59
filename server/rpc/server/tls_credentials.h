// TLS for the server's port, with certificates that may be replaced while it serves.
#pragma once

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/access/tls_files.h"

namespace braid {

// Each connection that begins is given what `files` holds then. If `files` has authorities of
// clients, a client without a certificate of theirs does not get in. `files` outlives the
// credentials, and they the server: it does not keep them, but asks them.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles* files);

}  // namespace braid

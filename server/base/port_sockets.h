// This process's TCP sockets at a port on which it listens, whichever library opened them.
#pragma once

#include <cstdint>

namespace braid {

// Stops accepting connections. Existing connections stay open.
void StopListening(int port);

// Returns the bytes written to the port's connections that the peers have not acknowledged.
int64_t UndeliveredBytes(int port);

// Shuts all connections of the port down in order: peers receive what was written, then the end of
// the stream. Does not block.
void EndAllConnections(int port);

}  // namespace braid

// This process's TCP sockets at a port that it listens on, whoever opened them.
#pragma once

#include <cstdint>

namespace braid {

// Lets nobody connect any more; connections stay as they are.
void StopListening(int port);

// What has been written to the port's connections and has not reached the machines at their other
// ends.
int64_t UndeliveredBytes(int port);

// Ends all connections of the port, in order: what has been written still arrives, then the end.
// Returns at once.
void EndAllConnections(int port);

}  // namespace braid

// This process's TCP sockets at a port that it listens on, whoever opened them.
#pragma once

#include <cstdint>

namespace braid {

// Lets nobody connect any more; connections stay as they are.
void StopListening(int port);

// What has been written to the port's connections and has not reached the machines at their other
// ends.
int64_t UndeliveredBytes(int port);

// Ends the port's connections of which something is undelivered: whoever writes to them is told so.
void EndUndelivered(int port);

}  // namespace braid

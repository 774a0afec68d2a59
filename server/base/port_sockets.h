// This process's TCP sockets at a port that it listens on, whoever opened them.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace braid {

// Lets nobody connect any more; connections stay as they are.
void StopListening(int port);

// What has been written to the port's connections and has not reached the machines at their other
// ends.
int64_t UndeliveredBytes(int port);

// Ends the port's connections of which something is undelivered: whoever writes to them is told so.
void EndUndelivered(int port);

// Ends the port's connection with the other end `peer_port` of `peer_address`, 4 or 16 bytes in the
// order of the network. What has come and has not been read is dropped. Whether it was there.
bool EndConnection(int port, absl::string_view peer_address, int peer_port);

}  // namespace braid

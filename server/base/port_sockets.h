// This process's TCP sockets at a port that it listens on, whoever opened them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace braid {

// Lets nobody connect any more; connections stay as they are.
void StopListening(int port);

// What has been written to the port's connections and has not reached the machines at their other
// ends.
int64_t UndeliveredBytes(int port);

// Ends all connections of the port, in order: what has been written still arrives, then the end.
// Returns at once.
void EndAllConnections(int port);

// Ends the port's connection with the other end `peer_port` of `peer_address`, 4 or 16 bytes in the
// order of the network. What has come and has not been read is dropped. Whether it was there.
bool EndConnection(int port, absl::string_view peer_address, int peer_port);

// The other ends of connections: address, as above, and port.
using Peers = absl::flat_hash_set<std::pair<std::string, int>>;

// The same of several. How many were there.
int64_t EndConnections(int port, const Peers& peers);

// The port of the socket `descriptor` at this end; -1: it is no IP socket.
int LocalPort(int descriptor);

// The descriptors of the sockets that listen at `port`.
std::vector<int> Listeners(int port);

// How many connections to `port` wait for the listening socket `descriptor` to accept them; nothing
// if it does not listen there any more.
std::optional<int64_t> WaitingConnections(int descriptor, int port);

}  // namespace braid

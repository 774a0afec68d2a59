// How many connections are accepted. gRPC 1.51 accepts none any more, for good, once accept4() has
// failed for want of a descriptor: so it never does.
#pragma once

#include <cstdint>

namespace braid {

// From now on connections to `port` leave some descriptors to others: probes, scrapes, files. One
// that would take these is closed as soon as it is accepted. Connections to other ports may take
// half of them. Of one port: the last that was told.
void LimitAccepting(int port);

// Of `limit` descriptors that the process may have, how many there are before a connection is
// refused, to the port that LimitAccepting() was told or to another one.
int64_t DescriptorsBeforeRefusal(int64_t limit, bool limited_port);

// How many connections the process has refused so since its start.
int64_t RefusedConnections();

// How often somebody in the process has tried to accept connections to the port that
// LimitAccepting() was told.
int64_t AcceptCalls();

}  // namespace braid

// Threads that run behind those of requests.
#pragma once

namespace braid {

// Names the calling thread, with at most 15 characters, and lowers its priority by `nicer`: when
// all cores are busy, threads that serve requests run first. Threads that it starts inherit the
// priority.
void EnterBackground(const char* name, int nicer = 10);

}  // namespace braid

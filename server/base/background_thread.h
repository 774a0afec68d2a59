// Lowers the priority of background threads.
#pragma once

namespace braid {

// Names the calling thread, with at most 15 characters, and raises its nice value by
// `nice_increment`: when all cores are busy, threads that serve requests run first. Threads that it
// starts inherit the nice value.
void EnterBackground(const char* name, int nice_increment = 10);

}  // namespace braid

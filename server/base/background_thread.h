// Threads of jobs, which run behind interactive requests.
#pragma once

namespace braid {

// Names the calling thread, with at most 15 characters, and lowers its priority (nice +10): when
// all cores are busy, threads that serve requests run first. Threads that it starts inherit the
// priority.
void EnterBackground(const char* name);

}  // namespace braid

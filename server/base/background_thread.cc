#include "server/base/background_thread.h"

#include <pthread.h>
#include <sys/resource.h>

namespace braid {

void EnterBackground(const char* name, int nice_increment) {
  pthread_setname_np(pthread_self(), name);
  // On Linux, 0 is the thread, not the process. A sum beyond 19 counts as 19.
  const int nice = getpriority(PRIO_PROCESS, 0) + nice_increment;
  // If it fails, the thread only runs earlier.
  (void)setpriority(PRIO_PROCESS, 0, nice);
}

}  // namespace braid

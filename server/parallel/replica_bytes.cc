#include "server/parallel/replica_bytes.h"

#include <set>

namespace braid {

int64_t BytesOf(const Replica& replica) {
  std::set<const void*> counted;
  int64_t bytes = 0;
  for (const StateEntry& entry : replica.state()) {
    if (entry.value.has_storage() && counted.insert(entry.value.storage().data()).second) {
      bytes += static_cast<int64_t>(entry.value.storage().nbytes());
    }
  }
  return bytes;
}

}  // namespace braid

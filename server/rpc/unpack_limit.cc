#include "server/rpc/unpack_limit.h"

#include <dlfcn.h>
#include <zlib.h>

#include <atomic>
#include <cstdint>
#include <limits>

namespace braid {
namespace {

std::atomic<size_t> most_of_message = std::numeric_limits<size_t>::max();
std::atomic<int64_t> most_of_all = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> unpacked = 0;  // by streams that have not ended

// zlib's own function of that name.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

void LimitUnpacking(size_t message_bytes, size_t all_bytes) {
  most_of_message = message_bytes;
  most_of_all = static_cast<int64_t>(all_bytes);
}

}  // namespace braid

// In the place of zlib's own, which the dynamic linker finds second. gRPC calls the one for each
// kilobyte that it unpacks, and gives a message up at the first error.
extern "C" int inflate(z_streamp strm, int flush) {
  static auto* const kInflate = braid::Next<decltype(inflate)>("inflate");
  if (strm == nullptr) {
    return kInflate(strm, flush);
  }
  if (strm->total_out > braid::most_of_message || braid::unpacked > braid::most_of_all) {
    return Z_MEM_ERROR;
  }
  const uLong before = strm->total_out;
  const int result = kInflate(strm, flush);
  braid::unpacked += static_cast<int64_t>(strm->total_out - before);
  return result;
}

extern "C" int inflateEnd(z_streamp strm) {
  static auto* const kInflateEnd = braid::Next<decltype(inflateEnd)>("inflateEnd");
  const int result = kInflateEnd(strm);
  if (result == Z_OK) {  // and not one that had ended before
    braid::unpacked -= static_cast<int64_t>(strm->total_out);
  }
  return result;
}

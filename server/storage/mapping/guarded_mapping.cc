#include "server/storage/mapping/guarded_mapping.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <limits>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"

namespace braid {
namespace {

// Mapping in the handler's table. A signal handler cannot lock, but must read address and size of
// one mapping together: both are in one word, in pages of 4 KiB.
struct Slot {
  std::atomic<uint64_t> pages{0};  // 0 if free
  std::atomic<bool> damaged{false};
};

constexpr int kPageBits = 12;
constexpr int kCountBits = 28;  // 1 TiB; the other bits hold a 48-bit address
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
// Marks a slot as taken without covering any page.
constexpr uint64_t kReserved = 1ULL << kCountBits;

std::array<Slot, GuardedMapping::kMaxMappings> slots;
struct sigaction before;

uint64_t Pack(const char* pages, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pages) >> kPageBits << kCountBits | bytes >> kPageBits;
}

// Async-signal-safe: uses only a system call and lock-free atomics.
void OnBusError(int, siginfo_t* info, void*) {
  const uint64_t page = reinterpret_cast<uintptr_t>(info->si_addr) >> kPageBits;
  for (Slot& slot : slots) {
    const uint64_t pages = slot.pages.load(std::memory_order_acquire);
    const uint64_t first = pages >> kCountBits;
    const uint64_t count = pages & kCountMask;
    if (page < first || page >= first + count) {
      continue;
    }
    const int error = errno;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): pages are numbers, for one atomic to hold them.
    void* const start = reinterpret_cast<void*>(first << kPageBits);
    // ThreadSanitizer would report mmap() as a write that races with reads of other threads.
    const int64_t mapped = syscall(SYS_mmap, start, count << kPageBits, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    errno = error;
    slot.damaged.store(true);
    if (mapped != -1) {
      return;
    }
  }
  // Not one of our mappings: restores the previous action, and the access is repeated.
  sigaction(SIGBUS, &before, nullptr);
}

void InstallHandler() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &before);
}

// Takes a free slot. Returns kMaxMappings if there is none.
size_t TakeSlot() {
  for (size_t s = 0; s < slots.size(); ++s) {
    uint64_t free = 0;
    if (slots[s].pages.compare_exchange_strong(free, kReserved)) {
      slots[s].damaged.store(false);
      return s;
    }
  }
  return slots.size();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GuardedMapping>> GuardedMapping::Map(int file, uint64_t offset,
                                                                    size_t bytes) {
  return MapWith(PROT_READ | PROT_WRITE, file, offset, bytes);
}

absl::StatusOr<std::unique_ptr<GuardedMapping>> GuardedMapping::MapReadOnly(int file,
                                                                            uint64_t offset,
                                                                            size_t bytes) {
  return MapWith(PROT_READ, file, offset, bytes);
}

absl::StatusOr<std::unique_ptr<GuardedMapping>> GuardedMapping::MapWith(int protection, int file,
                                                                        uint64_t offset,
                                                                        size_t bytes) {
  static absl::once_flag installed;
  absl::call_once(installed, InstallHandler);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const size_t skip = offset % page;
  constexpr uint64_t kLongest = kCountMask << kPageBits;
  if (bytes > kLongest - 2 * page || offset > std::numeric_limits<off_t>::max() - kLongest) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mapping of ", bytes, " bytes at offset ", offset, " is too large"));
  }
  const size_t pages_bytes = (skip + bytes + page - 1) / page * page;
  const size_t slot = TakeSlot();
  if (slot == kMaxMappings) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many shared memory regions (at most ", kMaxMappings, ")"));
  }
  void* const pages =
      mmap(nullptr, pages_bytes, protection, MAP_SHARED, file, static_cast<off_t>(offset - skip));
  if (pages == MAP_FAILED) {
    slots[slot].pages.store(0, std::memory_order_release);
    return absl::ResourceExhaustedError(absl::StrCat("no address space for ", bytes, " bytes"));
  }
  auto* const start = static_cast<char*>(pages);
  slots[slot].pages.store(Pack(start, pages_bytes), std::memory_order_release);
  return std::unique_ptr<GuardedMapping>(new GuardedMapping(start, pages_bytes, skip, bytes, slot));
}

GuardedMapping::~GuardedMapping() {
  // Leaves the table first: the addresses may be reused right after munmap().
  slots[slot_].pages.store(kReserved, std::memory_order_release);
  munmap(pages_, pages_bytes_);
  slots[slot_].pages.store(0, std::memory_order_release);
}

void GuardedMapping::ExpectRandomAccess() const {
  madvise(pages_, pages_bytes_, MADV_RANDOM);  // only advice, so errors do not matter
}

bool GuardedMapping::damaged() const { return slots[slot_].damaged.load(); }

}  // namespace braid

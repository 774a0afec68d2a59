#include "server/devices/signal_stack.h"

#include <dlfcn.h>

#include <csignal>
#include <cstddef>
#include <memory>

namespace braid {
namespace {

// The kernel saves 3 to 12 KiB of registers.
constexpr size_t kBytes = size_t{64} << 10;

class SignalStack {
 public:
  SignalStack() {
    stack_t there = {};
    if (sigaltstack(nullptr, &there) != 0 || (there.ss_flags & SS_DISABLE) == 0) {
      return;  // a sanitizer has installed one
    }
    memory_ = std::make_unique<char[]>(kBytes);
    stack_t stack = {};
    stack.ss_sp = memory_.get();
    stack.ss_size = kBytes;
    sigaltstack(&stack, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  ~SignalStack() {
    if (memory_ != nullptr) {
      stack_t none = {};
      none.ss_flags = SS_DISABLE;
      sigaltstack(&none, nullptr);
    }
  }

 private:
  std::unique_ptr<char[]> memory_;
};

}  // namespace

void InstallSignalStack() { static thread_local SignalStack stack; }

void InstallSignalStacks(int threads) {
  // The function behind `#pragma omp parallel`, in LibTorch's OpenMP library. Linking with OpenMP
  // would add a second one.
  using Parallel = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
  const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (threads > 1 && parallel != nullptr) {
    parallel([](void*) { InstallSignalStack(); }, nullptr, static_cast<unsigned>(threads), 0);
  } else {
    InstallSignalStack();
  }
}

}  // namespace braid

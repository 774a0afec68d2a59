#include "server/devices/signal_stack.h"

#include <dlfcn.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "gtest/gtest.h"
#include "server/devices/torch_settings.h"

namespace braid {
namespace {

stack_t StackOfThisThread() {
  stack_t stack = {};
  EXPECT_EQ(sigaltstack(nullptr, &stack), 0);
  return stack;
}

volatile uintptr_t handled_at = 0;

void OnSignal(int) {
  const char local = 0;
  handled_at = reinterpret_cast<uintptr_t>(&local);
}

TEST(SignalStackTest, HandlersRunOnTheSignalStack) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::thread([] {
    InstallSignalStack();
    InstallSignalStack();
    const stack_t stack = StackOfThisThread();
    EXPECT_EQ(stack.ss_flags, 0);
    raise(SIGUSR1);
    const auto start = reinterpret_cast<uintptr_t>(stack.ss_sp);
    EXPECT_GE(handled_at, start);
    EXPECT_LT(handled_at, start + stack.ss_size);
  }).join();
  EXPECT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

// Static, because ThreadSanitizer does not see the start of OpenMP's threads and would report a
// race for a counter on the stack.
std::atomic<int> threads_with_one = 0;

TEST(SignalStackTest, EveryIntraOpThreadOfAWorkerHasASignalStack) {
  std::thread([] {
    constexpr int kThreads = 2;
    SetUpWorkerThread(kThreads);
    const int before = threads_with_one;
    // at::parallel_for() uses OpenMP only in code that LibTorch compiles.
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
    const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    ASSERT_NE(parallel, nullptr);
    parallel([](void*) { threads_with_one += StackOfThisThread().ss_flags == 0 ? 1 : 0; }, nullptr,
             kThreads, 0);
    EXPECT_EQ(threads_with_one - before, kThreads);
  }).join();
}

TEST(SignalStackTest, KeepsAnExistingSignalStack) {
  std::thread([] {
    InstallSignalStack();
    const void* const first = StackOfThisThread().ss_sp;
    InstallSignalStack();
    EXPECT_EQ(StackOfThisThread().ss_sp, first);
  }).join();
}

}  // namespace
}  // namespace braid

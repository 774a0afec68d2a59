#include "server/base/background_thread.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(BackgroundThreadTest, LowersThePriorityOfOneThread) {
  const int before = getpriority(PRIO_PROCESS, 0);
  int lowered = 0;
  std::array<char, 16> name = {};
  std::thread([&] {
    EnterBackground("reader");
    lowered = getpriority(PRIO_PROCESS, 0);
    pthread_getname_np(pthread_self(), name.data(), name.size());
  }).join();
  EXPECT_EQ(lowered, std::min(before + 10, 19));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
  EXPECT_EQ(std::string(name.data()), "reader");
}

}  // namespace
}  // namespace braid

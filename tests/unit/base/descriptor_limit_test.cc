#include "server/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "gtest/gtest.h"

namespace braid {
namespace {

// Restores the limit.
class DescriptorLimitTest : public ::testing::Test {
 protected:
  DescriptorLimitTest() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimitTest() override { setrlimit(RLIMIT_NOFILE, &before_); }

  void Lower(rlim_t now) const {
    const rlimit limit = {.rlim_cur = now, .rlim_max = before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_ = {};
};

TEST_F(DescriptorLimitTest, RaisesTheLimitToTheHardLimit) {
  Lower(128);
  EXPECT_EQ(DescriptorLimit(), 128);
  RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), static_cast<int64_t>(std::min(before_.rlim_max, rlim_t{1} << 20)));
}

TEST_F(DescriptorLimitTest, NeverLowersTheLimit) {
  Lower(before_.rlim_max);
  const int64_t most = DescriptorLimit();
  RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), most);
}

}  // namespace
}  // namespace braid

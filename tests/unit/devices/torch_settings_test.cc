#include "server/devices/torch_settings.h"

#include <string>

#include "c10/util/Logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

std::string Logged(int severity) {
  LimitTorchLog();
  ::testing::internal::CaptureStderr();
  // Like LibTorch's macros.
  c10::MessageLogger({__func__, __FILE__, __LINE__}, severity).stream() << "something";
  return ::testing::internal::GetCapturedStderr();
}

TEST(TorchLogTest, HidesWarnings) { EXPECT_EQ(Logged(c10::GLOG_WARNING), ""); }

TEST(TorchLogTest, WritesErrors) { EXPECT_THAT(Logged(c10::GLOG_ERROR), HasSubstr("something")); }

}  // namespace
}  // namespace braid

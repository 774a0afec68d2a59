#include "server/devices/torch_log.h"

#include <string>

#include "c10/util/Logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

// Counts how often it is written out.
struct Described {
  int* times;
};
std::ostream& operator<<(std::ostream& out, const Described& described) {
  if (out) {
    ++*described.times;
  }
  return out;
}

std::string Logged(int severity, int* described) {
  LimitTorchLog();
  ::testing::internal::CaptureStderr();
  // As LibTorch's macros do it.
  c10::MessageLogger({__func__, __FILE__, __LINE__}, severity).stream()
      << "something " << Described{described};
  return ::testing::internal::GetCapturedStderr();
}

TEST(TorchLogTest, WarningsAreNotEvenFormatted) {
  int described = 0;
  EXPECT_EQ(Logged(c10::GLOG_WARNING, &described), "");
  EXPECT_EQ(Logged(-2, &described), "");  // as VLOG(2)
  EXPECT_EQ(described, 0);
}

TEST(TorchLogTest, ErrorsAreWritten) {
  int described = 0;
  EXPECT_THAT(Logged(c10::GLOG_ERROR, &described), HasSubstr("something"));
  EXPECT_EQ(described, 1);
}

}  // namespace
}  // namespace braid

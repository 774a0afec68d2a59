#include "server/telemetry/log_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

// A pipe whose reader reads when it is told to.
class LogOutputTest : public ::testing::Test {
 protected:
  LogOutputTest() {
    EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~LogOutputTest() override {
    for (const int end : ends_) {
      close(end);
    }
  }

  std::string ReadAll() const {
    std::string all;
    std::array<char, 4096> bytes;
    for (ssize_t count = 0; (count = read(ends_[0], bytes.data(), bytes.size())) > 0;) {
      all.append(bytes.data(), static_cast<size_t>(count));
    }
    return all;
  }

  std::array<int, 2> ends_ = {};
};

TEST_F(LogOutputTest, WritesWhatItIsGiven) {
  LogOutput output(ends_[1], absl::Seconds(1));
  output.Write("one\n");
  output.Write("two\nthree\n");
  EXPECT_EQ(ReadAll(), "one\ntwo\nthree\n");
  EXPECT_EQ(output.TakeLost(), 0);
}

TEST_F(LogOutputTest, WaitsOnceForAReaderWhoTakesNothing) {
  LogOutput output(ends_[1], absl::Milliseconds(200));
  const std::string line = std::string(999, 'x') + "\n";
  const absl::Time start = absl::Now();
  for (int i = 0; i < 1000; ++i) {
    output.Write(line);
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(output.TakeLost(), 0) << "it cannot be told yet";

  std::string read = ReadAll();
  const int64_t lost = output.TakeLost();
  EXPECT_GT(lost, 0);
  output.Write("again\n");
  read += ReadAll();
  EXPECT_THAT(read, EndsWith("\nagain\n"));
  EXPECT_EQ(read.size() / line.size() + static_cast<size_t>(lost), 1000);
  EXPECT_EQ(output.TakeLost(), 0);
}

TEST_F(LogOutputTest, ALineThatWasNotTakenWholeIsEnded) {
  LogOutput output(ends_[1], absl::ZeroDuration());
  output.Write(std::string(1 << 20, 'x') + "\n");
  const std::string half = ReadAll();
  EXPECT_LT(half.size(), 1 << 20);
  EXPECT_EQ(output.TakeLost(), 1);
  output.Write("next\n");
  EXPECT_THAT(half, StartsWith("xxx"));
  EXPECT_EQ(ReadAll(), "\nnext\n");
}

}  // namespace
}  // namespace braid

#include "server/telemetry/log.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/telemetry/access_log.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Restores format and levels, so that tests can run in any order.
class LogTest : public ::testing::Test {
 protected:
  void TearDown() override {
    SetLogFormat(LogFormat::kText);
    SetLogLevels(DefaultLogLevels());
  }
  // Returns what `log` writes to stdout.
  template <typename Write>
  static std::string Written(Write log) {
    ::testing::internal::CaptureStdout();
    log();
    FlushLog();
    return ::testing::internal::GetCapturedStdout();
  }
};

TEST_F(LogTest, WritesOneLinePerMessage) {
  const std::string line =
      Written([] { Log(LogModule::kTraining).warn("trainer '{}' is idle", "a"); });
  EXPECT_THAT(line, MatchesRegex("20..-..-..T..:..:..\\....Z warning training: trainer 'a' is "
                                 "idle\n"));
}

TEST_F(LogTest, EscapesControlCharacters) {
  const std::string hostile = "a\nb\r\t\x1b[31m\x7f\xc3\xa9";
  const std::string text = Written([&] { Log(LogModule::kServer).info("{}", hostile); });
  EXPECT_THAT(text, EndsWith("server: a\\nb\\r\\t\\x1b[31m\\x7f\xc3\xa9\n"));
  SetLogFormat(LogFormat::kJson);
  const std::string json = Written([&] { Log(LogModule::kServer).info("{}\xff", hostile); });
  EXPECT_EQ(std::count(json.begin(), json.end(), '\n'), 1);
  EXPECT_EQ(nlohmann::json::parse(json)["message"], hostile + "\xef\xbf\xbd");
}

TEST_F(LogTest, EscapesInvisibleUnicodeCharacters) {
  const std::string text = Written([] {
    Log(LogModule::kServer)
        // NOLINTNEXTLINE(misc-misleading-bidirectional): this is the input
        .info("a\xc2\x85 \xc2\x9b \xe2\x80\xa8 \xe2\x80\xae \xe2\x81\xa6 \xe2\x82\xac");
  });
  EXPECT_THAT(text, EndsWith("server: a\\xc2\\x85 \\xc2\\x9b \\xe2\\x80\\xa8 \\xe2\\x80\\xae "
                             "\\xe2\\x81\\xa6 \xe2\x82\xac\n"));
  EXPECT_THAT(
      Written([] {
        // An Arabic letter mark, a zero-width space, a byte order mark, a tag, and a C1 byte.
        Log(LogModule::kServer)
            .info(
                "\xd8\x9c \xe2\x80\x8b \xef\xbb\xbf \xf3\xa0\x80\xa1 \x9b \xd8\xa8 "
                "\xf0\x9f\x98\x80");
      }),
      EndsWith("server: \\xd8\\x9c \\xe2\\x80\\x8b \\xef\\xbb\\xbf \\xf3\\xa0\\x80\\xa1 \\x9b "
               "\xd8\xa8 \xf0\x9f\x98\x80\n"));
  SetLogFormat(LogFormat::kJson);
  const std::string json = Written([] { Log(LogModule::kServer).info("a\xe2\x80\xa8"); });
  EXPECT_THAT(json, HasSubstr("a\\u2028"));
}

TEST_F(LogTest, JsonHasTimeLevelAndModule) {
  SetLogFormat(LogFormat::kJson);
  const nlohmann::json line =
      nlohmann::json::parse(Written([] { Log(LogModule::kRpc).error("no"); }));
  EXPECT_EQ(line["level"], "error");
  EXPECT_EQ(line["module"], "rpc");
  EXPECT_THAT(line["time"].get<std::string>(), MatchesRegex("20.*T.*Z"));
}

TEST_F(LogTest, EachModuleHasItsLevel) {
  BRAID_ASSERT_OK_AND_ASSIGN(const LogLevels levels,
                             ParseLogLevels("warning,training=debug,access=info", GetLogLevels()));
  SetLogLevels(levels);
  EXPECT_EQ(LogLevelsText(GetLogLevels()),
            "server=warning,rpc=warning,models=warning,training=debug,devices=warning,"
            "storage=warning,jobs=warning,access=info");
  EXPECT_EQ(Written([] { Log(LogModule::kServer).info("no"); }), "");
  EXPECT_THAT(Written([] { Log(LogModule::kTraining).debug("yes"); }), HasSubstr("yes"));
}

TEST_F(LogTest, AuditIsLoggedAtEveryLevel) {
  BRAID_ASSERT_OK_AND_ASSIGN(const LogLevels levels, ParseLogLevels("off", GetLogLevels()));
  SetLogLevels(levels);
  EXPECT_THAT(Written([] { Log(LogModule::kAudit).info("yes"); }), HasSubstr("audit: yes"));
}

TEST_F(LogTest, RejectsUnknownLevelsAndModules) {
  const LogLevels levels = DefaultLogLevels();
  EXPECT_THAT(ParseLogLevels("loud", levels),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown level 'loud'")));
  EXPECT_THAT(
      ParseLogLevels("info,audit=off", levels),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown log module 'audit'")));
  EXPECT_THAT(ParseLogLevels("", levels),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown level ''")));
}

TEST(TraceIdTest, ParsesATraceparent) {
  constexpr char kId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
  EXPECT_EQ(TraceIdOf(std::string("00-") + kId + "-00f067aa0ba902b7-01"), kId);
  for (const char* wrong : {"", "00-4bf92f3577b34da6a3ce929d0e0e4736",
                            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                            "00-00000000000000000000000000000000-00f067aa0ba902b7-01"}) {
    EXPECT_EQ(TraceIdOf(wrong), "") << wrong;
  }
}

}  // namespace
}  // namespace braid

#include "server/telemetry/audit_log.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using ::testing::EndsWith;

class AuditLogTest : public ::testing::Test {
 protected:
  void TearDown() override { SetLogFormat(LogFormat::kText); }
  static std::string Written(const AuditEntry& entry) {
    ::testing::internal::CaptureStdout();
    LogAudit(entry);
    return ::testing::internal::GetCapturedStdout();
  }

  const AuditDetails details_ = {{"version", 3}, {"checkpoint", "a\"b\n"}};
  const AuditEntry entry_ = {"ann", "ipv4:1.2.3.4:5", "Rollback", "m", "", details_, "OK"};
};

TEST_F(AuditLogTest, TextLineHasAllFields) {
  EXPECT_THAT(Written(entry_),
              EndsWith("info audit: identity=\"ann\" peer=\"ipv4:1.2.3.4:5\" method=Rollback "
                       "model=\"m\" trainer=\"\" version=3 checkpoint=\"a\\\"b\\n\" outcome=OK\n"));
}

TEST_F(AuditLogTest, JsonLineHasAMemberPerField) {
  SetLogFormat(LogFormat::kJson);
  const std::string line = Written(entry_);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  nlohmann::json members = nlohmann::json::parse(line);
  EXPECT_TRUE(members.erase("time"));
  EXPECT_EQ(members, nlohmann::json({{"level", "info"},
                                     {"module", "audit"},
                                     {"identity", "ann"},
                                     {"peer", "ipv4:1.2.3.4:5"},
                                     {"method", "Rollback"},
                                     {"model", "m"},
                                     {"version", 3},
                                     {"checkpoint", "a\"b\n"},
                                     {"outcome", "OK"}}));
}

TEST_F(AuditLogTest, CutsLongTextAndReplacesInvalidText) {
  const std::string longest(2000, 'x');
  const AuditDetails details = {{"settings", longest}};
  const std::string hostile = "a\xff\x1b";
  const AuditEntry entry = {hostile, "", "LogSettings", longest, "", details, "OK"};
  const std::string text = Written(entry);
  EXPECT_LT(text.size(), 1500);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  SetLogFormat(LogFormat::kJson);
  const nlohmann::json members = nlohmann::json::parse(Written(entry));
  EXPECT_EQ(members["identity"], "a\xef\xbf\xbd\x1b");
  EXPECT_EQ(members["model"], longest.substr(0, 128));
  EXPECT_EQ(members["settings"], longest.substr(0, 1024));
}

}  // namespace
}  // namespace braid

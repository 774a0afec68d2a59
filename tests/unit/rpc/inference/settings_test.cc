#include "server/rpc/inference/settings.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/telemetry/access_log.h"
#include "server/telemetry/log.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

// Puts the log's level back.
class LogSettingsTest : public ::testing::Test {
 protected:
  void TearDown() override { SetLogLevels(DefaultLogLevels()); }

  absl::Status Exchange() { return ExchangeLogSettings(request_, &response_); }
  auto& operator[](const std::string& name) { return (*request_.mutable_settings())[name]; }

  inference::LogSettingsRequest request_;
  inference::LogSettingsResponse response_;
};

TEST_F(LogSettingsTest, ReturnsTheCurrentSettings) {
  ASSERT_THAT(Exchange(), IsOk());
  EXPECT_TRUE(response_.settings().at("log_error").bool_param());
  EXPECT_TRUE(response_.settings().at("log_info").bool_param());
  EXPECT_EQ(response_.settings().at("log_verbose_level").uint32_param(), 0);
  EXPECT_EQ(response_.settings().at("log_format").string_param(), "ISO8601");
}

TEST_F(LogSettingsTest, FormatsSettingsForTheAudit) {
  EXPECT_EQ(SettingsText(request_), "");
  (*this)["log_verbose_level"].set_uint32_param(1);
  (*this)["log_level"].set_string_param("info,rpc=debug");
  (*this)["log_info"].set_bool_param(true);
  (*this)["log_error"];
  EXPECT_EQ(SettingsText(request_),
            "log_error= log_info=true log_level=info,rpc=debug log_verbose_level=1");
  inference::TraceSettingRequest trace;
  auto& level = (*trace.mutable_settings())["trace_level"];
  level.add_value("OFF");
  level.add_value("TENSORS");
  EXPECT_EQ(SettingsText(trace), "trace_level=OFF,TENSORS");
}

TEST_F(LogSettingsTest, ChangesTheLevel) {
  (*this)["log_verbose_level"].set_uint32_param(1);
  ASSERT_THAT(Exchange(), IsOk());
  EXPECT_TRUE(Log(LogModule::kTraining).should_log(spdlog::level::debug));
  EXPECT_FALSE(AccessLogOn());
  (*this)["log_verbose_level"].set_uint32_param(0);
  (*this)["log_info"].set_bool_param(false);
  ASSERT_THAT(Exchange(), IsOk());
  EXPECT_FALSE(Log(LogModule::kTraining).should_log(spdlog::level::info));
  EXPECT_TRUE(Log(LogModule::kTraining).should_log(spdlog::level::warn));
  EXPECT_FALSE(response_.settings().at("log_info").bool_param());
}

TEST_F(LogSettingsTest, SetsLevelsPerModule) {
  (*this)["log_level"].set_string_param("training=debug,access=info");
  ASSERT_THAT(Exchange(), IsOk());
  EXPECT_TRUE(AccessLogOn());
  EXPECT_EQ(response_.settings().at("log_level").string_param(), LogLevelsText(GetLogLevels()));
  EXPECT_TRUE(Log(LogModule::kTraining).should_log(spdlog::level::debug));
  EXPECT_FALSE(Log(LogModule::kServer).should_log(spdlog::level::debug));
}

TEST_F(LogSettingsTest, RejectsInvalidSettingsWithoutChanges) {
  (*this)["log_error"].set_bool_param(false);
  EXPECT_THAT(Exchange(), RefusesField("settings", HasSubstr("log_warning")));
  request_.Clear();
  (*this)["log_info"].set_bool_param(false);
  (*this)["nosuch"].set_bool_param(false);
  EXPECT_THAT(Exchange(), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("nosuch")));
  request_.Clear();
  (*this)["log_file"].set_string_param("/etc/passwd");
  EXPECT_THAT(Exchange(), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("log_file")));
  request_.Clear();
  (*this)["log_info"].set_string_param("yes");
  EXPECT_THAT(Exchange(), RefusesField("settings.log_info", HasSubstr("true or false")));
  (*this)["log_info"].set_bool_param(false);
  (*this)["log_level"].set_string_param("info,no=off");
  EXPECT_THAT(Exchange(), RefusesField("settings.log_level", HasSubstr("unknown log module 'no'")));
  EXPECT_EQ(GetLogLevels(), DefaultLogLevels());
}

TEST(TraceSettingsTest, TracingIsAlwaysOff) {
  inference::TraceSettingRequest request;
  inference::TraceSettingResponse response;
  (*request.mutable_settings())["trace_level"].add_value("OFF");
  (*request.mutable_settings())["trace_rate"];
  ASSERT_THAT(ExchangeTraceSettings(request, &response), IsOk());
  EXPECT_EQ(response.settings().at("trace_level").value(0), "OFF");
  (*request.mutable_settings())["trace_file"].add_value("/tmp/x");
  EXPECT_THAT(ExchangeTraceSettings(request, &response),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("trace_file")));
}

}  // namespace
}  // namespace braid

// Matchers and assertions on absl::Status and absl::StatusOr.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"

namespace braid {

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

inline std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

// EXPECT_THAT(Parse(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
MATCHER_P2(StatusIs, code, message, absl::StatusCodeToString(code)) {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status;
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, TextOf(status), result_listener);
}

// INVALID_ARGUMENT by InvalidField(field, …); `message` is matched against all of the message.
MATCHER_P2(RefusesField, field, message, std::string("refuses ") + field) {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status;
  return status.code() == absl::StatusCode::kInvalidArgument &&
         InvalidFieldOf(status) == std::optional<std::string>(field) &&
         ::testing::ExplainMatchResult(message, TextOf(status), result_listener);
}

MATCHER(IsOk, negation ? "is not ok" : "is ok") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).ok();
}

}  // namespace braid

// NOLINTBEGIN(bugprone-macro-parentheses): `left` may be a declaration.
#define BRAID_ASSERT_OK_AND_ASSIGN(left, expression) \
  BRAID_ASSERT_OK_AND_ASSIGN_IMPL(BRAID_CONCAT(braid_result_, __LINE__), left, expression)

#define BRAID_ASSERT_OK_AND_ASSIGN_IMPL(result, left, expression) \
  auto result = (expression);                                     \
  ASSERT_TRUE(result.ok()) << result.status();                    \
  left = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)

#include "server/base/status.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

absl::StatusOr<int> Half(int number) {
  if (number % 2 != 0) {
    return InvalidField("number", "is odd");
  }
  return number / 2;
}

absl::StatusOr<int> Quarter(int number) {
  BRAID_ASSIGN_OR_RETURN(const int half, Half(number));
  BRAID_RETURN_IF_ERROR(Half(half).status());
  return half / 2;
}

TEST(StatusMacrosTest, ReturnTheValueOrTheError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(7).status(), InvalidField("number", "is odd"));
  EXPECT_EQ(Quarter(6).status(), InvalidField("number", "is odd"));
}

TEST(InvalidFieldTest, NamesTheFieldInMessageAndPayload) {
  const absl::Status status = InvalidField("inputs[0].shape", "is [3]; expected [2]");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "inputs[0].shape: is [3]; expected [2]");
  EXPECT_EQ(InvalidFieldOf(status), "inputs[0].shape");
}

TEST(InvalidFieldTest, OtherErrorsNameNoField) {
  EXPECT_EQ(InvalidFieldOf(absl::InvalidArgumentError("no")), std::nullopt);
  EXPECT_EQ(InvalidFieldOf(absl::OkStatus()), std::nullopt);
}

}  // namespace
}  // namespace braid

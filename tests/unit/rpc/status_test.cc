#include "server/rpc/status.h"

#include <optional>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "server/base/status.h"

namespace braid {
namespace {

using ::testing::StartsWith;

// The BadRequest in the details; nullopt if they cannot be read.
std::optional<google::rpc::BadRequest> BadRequestOf(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::BadRequest bad_request;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1 ||
      !details.details(0).UnpackTo(&bad_request)) {
    return std::nullopt;
  }
  return bad_request;
}

TEST(ToGrpcStatusTest, KeepsCodeAndMessageOfAllStatusCodes) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "message");
    const grpc::Status converted = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(converted.error_code()), code);
    EXPECT_EQ(converted.error_message(), code == 0 ? "" : "message");
    EXPECT_EQ(converted.error_details(), "");
    EXPECT_EQ(CodeName(converted.error_code()),
              absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  }
}

TEST(ToGrpcStatusTest, AnInvalidFieldBecomesABadRequest) {
  const grpc::Status status = ToGrpcStatus(InvalidField("inputs[0].shape", "is [3]; expected [2]"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), 3);
  EXPECT_EQ(details.message(), "inputs[0].shape: is [3]; expected [2]");
  const auto bad_request = BadRequestOf(status);
  ASSERT_TRUE(bad_request);
  ASSERT_EQ(bad_request->field_violations_size(), 1);
  EXPECT_EQ(bad_request->field_violations(0).field(), "inputs[0].shape");
  EXPECT_EQ(bad_request->field_violations(0).description(), details.message());
}

TEST(ToGrpcStatusTest, TruncatesLongMessages) {
  const grpc::Status status = ToGrpcStatus(InvalidField("name", std::string(100000, 'x')));
  EXPECT_THAT(status.error_message(), StartsWith("name: xxx"));
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 8192);
  EXPECT_TRUE(BadRequestOf(status));
}

TEST(ToGrpcStatusTest, TruncatedMessagesAreValidUtf8) {
  for (size_t before = 2030; before < 2050; ++before) {
    const std::string text = std::string(before, 'x') + "äöü€";  // of 2 and 3 bytes each
    EXPECT_TRUE(BadRequestOf(ToGrpcStatus(InvalidField("name", text)))) << before;
  }
}

TEST(CodeNameTest, ReturnsTheProtocolsNames) {
  EXPECT_EQ(CodeName(grpc::StatusCode::OK), "OK");
  EXPECT_EQ(CodeName(grpc::StatusCode::INVALID_ARGUMENT), "INVALID_ARGUMENT");
  EXPECT_EQ(CodeName(grpc::StatusCode::UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_EQ(CodeName(grpc::StatusCode::DO_NOT_USE), "UNKNOWN");
  std::set<absl::string_view> names;
  for (int code = 0; code <= 16; ++code) {
    names.insert(CodeName(static_cast<grpc::StatusCode>(code)));
  }
  EXPECT_EQ(names.size(), 17);
}

}  // namespace
}  // namespace braid

#include "server/remote/object_path.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

TEST(ObjectPath, HasABucketAndAKey) {
  EXPECT_TRUE(IsObjectPath("s3://bucket/key"));
  EXPECT_FALSE(IsObjectPath("bucket/s3://key"));
  EXPECT_EQ(ParseObjectPath("s3://bucket/a b/c%20").value(), "bucket/a b/c%20");
  EXPECT_EQ(ParseObjectPath("s3://bucket/data/").value(), "bucket/data");
  EXPECT_EQ(ParseObjectPath("s3://bucket").value(), "bucket");
}

TEST(ObjectPath, RejectsKeysThatAreNoLocalPaths) {
  for (const std::string& path :
       {std::string("s3://"), std::string("s3:///key"), std::string("bucket/key"),
        std::string("s3://bucket/a//b"), std::string("s3://bucket/../b"),
        std::string("s3://bucket/./b"), std::string("s3://bucket/a\0b", 15),
        "s3://bucket/" + std::string(256, 'a')}) {
    EXPECT_THAT(ParseObjectPath(path).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("expected s3://bucket/key")))
        << path;
  }
}

TEST(ObjectPath, IsBelowAPrefixOfWholeNames) {
  EXPECT_TRUE(IsBelowPrefix("bucket/data", {"other", "bucket/data"}));
  EXPECT_TRUE(IsBelowPrefix("bucket/data/a", {"bucket/data"}));
  EXPECT_FALSE(IsBelowPrefix("bucket/database", {"bucket/data"}));
  EXPECT_FALSE(IsBelowPrefix("bucket", {"bucket/data"}));
  EXPECT_FALSE(IsBelowPrefix("bucket/data", {}));
}

}  // namespace
}  // namespace braid

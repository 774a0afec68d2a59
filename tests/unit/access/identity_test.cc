#include "server/access/identity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

Identity Granted(absl::string_view grants) {
  const absl::StatusOr<std::vector<Grant>> parsed = ParseGrants(grants);
  EXPECT_THAT(parsed, IsOk());
  return {"ann", parsed.ok() ? *parsed : std::vector<Grant>()};
}

TEST(IdentityTest, RolesAreIndependent) {
  const Identity infers = Granted("infer");
  EXPECT_TRUE(infers.MayAll(Role::kInfer));
  EXPECT_FALSE(infers.MaySome(Role::kTrain));
  EXPECT_FALSE(infers.MaySome(Role::kAdmin));
  const Identity trains = Granted("train");
  EXPECT_TRUE(trains.MayAll(Role::kTrain));
  EXPECT_FALSE(trains.MaySome(Role::kInfer));
}

TEST(IdentityTest, AdminIncludesAllRoles) {
  const Identity admin = Granted("admin");
  for (const Role role : {Role::kInfer, Role::kTrain, Role::kAdmin}) {
    EXPECT_TRUE(admin.MayAll(role));
    EXPECT_TRUE(admin.May(role, "mnist"));
  }
}

TEST(IdentityTest, ARoleForAModelAppliesToThatModelOnly) {
  const Identity ann = Granted("infer:resnet18,train:mnist");
  EXPECT_TRUE(ann.May(Role::kInfer, "resnet18"));
  EXPECT_FALSE(ann.May(Role::kInfer, "resnet1"));
  EXPECT_FALSE(ann.May(Role::kInfer, "resnet180"));
  EXPECT_FALSE(ann.May(Role::kInfer, ""));
  EXPECT_FALSE(ann.May(Role::kTrain, "resnet18"));
  EXPECT_FALSE(ann.MayAll(Role::kInfer));
  EXPECT_TRUE(ann.MaySome(Role::kTrain));
  EXPECT_TRUE(ann.Sees("mnist"));
  EXPECT_FALSE(ann.Sees("other"));
}

TEST(IdentityTest, AnAdminOfAModelIsNotAnAdminOfOthers) {
  const Identity ann = Granted("admin:mnist");
  EXPECT_TRUE(ann.May(Role::kTrain, "mnist"));
  EXPECT_FALSE(ann.May(Role::kAdmin, "other"));
  EXPECT_FALSE(ann.MayAll(Role::kInfer));
}

TEST(IdentityTest, ModelNamesMayContainAColon) {
  EXPECT_TRUE(Granted("infer:team:model").May(Role::kInfer, "team:model"));
}

TEST(IdentityTest, ModelNamesMayContainEscapedSeparators) {
  const Identity ann = Granted("infer:my%20model,train:a%2cb%25%C3%A9");
  EXPECT_TRUE(ann.May(Role::kInfer, "my model"));
  EXPECT_TRUE(ann.May(Role::kTrain, "a,b%é"));
  EXPECT_FALSE(ann.May(Role::kInfer, "my%20model"));
  for (const char* text : {"infer:100%", "infer:a%2", "infer:a%2gb", "infer:%%20"}) {
    EXPECT_THAT(ParseGrants(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("%20 for a space, %2C for a comma")))
        << text;
  }
}

TEST(IdentityTest, RejectsUnknownRoles) {
  for (const char* text : {"", "boss", "Infer", "infer:", "infer,", ",infer", "infer train"}) {
    EXPECT_THAT(ParseGrants(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("expected infer, train or admin")))
        << text;
  }
}

}  // namespace
}  // namespace braid

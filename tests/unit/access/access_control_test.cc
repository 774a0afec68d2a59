#include "server/access/access_control.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AccessControlTest : public ::testing::Test {
 protected:
  AccessControlTest() {
    Write("one");
    dir_.Write("certificates", "admin jane\n");
  }

  // A file with one token.
  void Write(absl::string_view token) {
    dir_.Write("tokens", absl::StrCat("infer sha256:", Sha256Hex(Sha256(token)), " ann\n"));
  }
  std::string Path(const std::string& name) const { return (dir_.path() / name).string(); }
  absl::StatusOr<std::unique_ptr<AccessControl>> Create() const {
    return AccessControl::Create({.tokens = Path("tokens"), .certificates = Path("certificates")});
  }
  static std::string NameOf(const AccessControl& access, absl::string_view token) {
    const auto identity = access.Identify({.token = Sha256(token), .names = {"jane"}});
    return identity == nullptr ? "nobody" : identity->name;
  }

  TempDir dir_;
};

TEST_F(AccessControlTest, ATokenTakesPrecedenceOverACertificate) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto access, Create());
  EXPECT_EQ(NameOf(*access, "one"), "ann");
  EXPECT_EQ(NameOf(*access, "two"), "nobody");
  const auto jane = access->Identify({.token = {}, .names = {"unknown", "jane"}});
  ASSERT_NE(jane, nullptr);
  EXPECT_EQ(jane->name, "jane");
  EXPECT_EQ(access->Identify({}), nullptr);
}

TEST_F(AccessControlTest, AppliesAChangeOnceItIsStable) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto access, Create());
  const int64_t before = access->generation();
  access->files()->Poll();
  EXPECT_EQ(access->generation(), before);
  Write("two");
  access->files()->Poll();
  EXPECT_EQ(NameOf(*access, "two"), "nobody") << "somebody may be writing";
  access->files()->Poll();
  EXPECT_EQ(NameOf(*access, "two"), "ann");
  EXPECT_EQ(NameOf(*access, "one"), "nobody");
  EXPECT_GT(access->generation(), before);
}

TEST_F(AccessControlTest, KeepsTheTableIfAFileBecomesInvalid) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto access, Create());
  const auto look = [&] {
    access->files()->Poll();
    access->files()->Poll();
  };
  dir_.Write("tokens", "boss\n");
  look();
  EXPECT_EQ(NameOf(*access, "one"), "ann");
  std::filesystem::remove(dir_.path() / "tokens");
  look();
  EXPECT_EQ(NameOf(*access, "one"), "ann");
  Write("two");
  look();
  EXPECT_EQ(NameOf(*access, "two"), "ann");
}

TEST_F(AccessControlTest, ErrorsNameTheFlagAndTheFile) {
  dir_.Write("tokens", "boss\n");
  EXPECT_THAT(AccessControl::Create({.tokens = Path("tokens"), .certificates = ""}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--auth_tokens: "), HasSubstr("tokens:1: 'boss'"))));
  EXPECT_THAT(AccessControl::Create({.tokens = "", .certificates = Path("absent")}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--auth_certificates: "), HasSubstr("No such file"))));
}

}  // namespace
}  // namespace braid

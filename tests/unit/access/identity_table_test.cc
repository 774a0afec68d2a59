#include "server/access/identity_table.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsNull;
using ::testing::Not;

std::string Line(absl::string_view grants, absl::string_view token, absl::string_view name) {
  return absl::StrCat(grants, " sha256:", Sha256Hex(Sha256(token)), " ", name, "\n");
}

TEST(IdentityTableTest, FindsIdentitiesByToken) {
  IdentityTable table;
  ASSERT_THAT(table.AddTokens("tokens", absl::StrCat("# people\n\n", Line("infer", "one", "ann"),
                                                     "  ", Line("admin\t", "two", "bob \r"))),
              IsOk());
  ASSERT_NE(table.FindToken(Sha256("one")), nullptr);
  EXPECT_EQ(table.FindToken(Sha256("one"))->name, "ann");
  EXPECT_EQ(table.FindToken(Sha256("two"))->name, "bob");
  EXPECT_TRUE(table.FindToken(Sha256("two"))->MayAll(Role::kAdmin));
  EXPECT_THAT(table.FindToken(Sha256("three")), IsNull());
  EXPECT_THAT(table.FindToken(Sha256("")), IsNull());
}

TEST(IdentityTableTest, AcceptsUpperCaseHexDigits) {
  IdentityTable table;
  ASSERT_THAT(table.AddTokens("tokens",
                              "infer sha256:BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410F"
                              "F61F20015AD ann"),
              IsOk());
  EXPECT_NE(table.FindToken(Sha256("abc")), nullptr);
}

TEST(IdentityTableTest, FindsIdentitiesByCertificate) {
  IdentityTable table;
  ASSERT_THAT(table.AddCertificates("certificates",
                                    "infer spiffe://example.org/app\n# one\ntrain Jane Roe\n"),
              IsOk());
  ASSERT_NE(table.FindCertificate("Jane Roe"), nullptr);
  EXPECT_TRUE(table.FindCertificate("Jane Roe")->MayAll(Role::kTrain));
  EXPECT_NE(table.FindCertificate("spiffe://example.org/app"), nullptr);
  EXPECT_THAT(table.FindCertificate("spiffe://example.org"), IsNull());
  EXPECT_THAT(table.FindCertificate(""), IsNull());
}

TEST(IdentityTableTest, ErrorsNameTheLine) {
  const std::string good = Line("infer", "one", "ann");
  for (const auto& [text, why] : {
           std::pair<std::string, std::string>{"infer\n", "people:1: has fewer than three words"},
           {good + good, "people:2: duplicate name 'ann'"},
           {good + Line("train", "one", "bob"),
            "people:2: duplicate token: 'bob' and another name"},
           {good + "\n" + Line("boss", "two", "bob"), "people:3: 'boss' is not a role"},
           {Line(std::string(64, 'a'), "two", "bob"),
            "people:1: a word of 64 characters is not a role"},
           {"infer sha256:12 ann", "people:1: the second word, of 9 bytes, is not the hash"},
           {good + "train sha256:" + std::string(64, 'g') + " bob", "64 hexadecimal digits"},
       }) {
    IdentityTable table;
    EXPECT_THAT(table.AddTokens("people", text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }
  IdentityTable table;
  EXPECT_THAT(
      table.AddCertificates("people", "infer a\ntrain a"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("people:2: duplicate identity 'a'")));
  EXPECT_THAT(
      table.AddCertificates("people", "infer"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("people:1: missing identity")));
}

TEST(IdentityTableTest, ErrorsDoNotQuoteTokens) {
  IdentityTable table;
  EXPECT_THAT(table.AddTokens("people", "infer secret-token ann"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("sha256sum"), Not(HasSubstr("secret-token")))));
}

TEST(Sha256Test, MatchesTheStandardTestVectors) {
  EXPECT_EQ(Sha256Hex(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(Sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(ParseSha256(Sha256Hex(Sha256("abc"))), Sha256("abc"));
  EXPECT_FALSE(SameDigest(Sha256("abc"), Sha256("abd")));
}

}  // namespace
}  // namespace braid

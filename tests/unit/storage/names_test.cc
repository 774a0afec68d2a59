#include "server/storage/names.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(VersionLabelTest, IsAPlainNameWithALetter) {
  for (const char* label : {"stable", "v2", "2026-11-rc", "A"}) {
    EXPECT_TRUE(IsVersionLabel(label)) << label;
  }
  for (const char* label : {"", "12", "1.0", "2026-11", "a b", ".hidden", "a/b"}) {
    EXPECT_FALSE(IsVersionLabel(label)) << label;
  }
}

TEST(PlainNameTest, KeepsAPlainName) { EXPECT_EQ(PlainName("m-1.x_y"), "m-1.x_y"); }

TEST(PlainNameTest, MakesOtherNamesPlainAndUnique) {
  std::set<std::string> names;
  for (const std::string& name : {std::string("a/b"), std::string("a:b"), std::string("a b"),
                                  std::string("a_b"), std::string("modèle"), std::string(".hidden"),
                                  std::string(), std::string(255, 'x'), std::string(254, 'x')}) {
    const std::string plain = PlainName(name);
    EXPECT_TRUE(IsPlainName(plain)) << plain;
    EXPECT_EQ(plain, PlainName(name));
    EXPECT_TRUE(names.insert(plain).second) << plain;
  }
}

}  // namespace
}  // namespace braid

#include "server/base/text.h"

#include <string>

#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(ExcerptTest, KeepsShortText) {
  EXPECT_EQ(Excerpt(""), "");
  EXPECT_EQ(Excerpt("abc", 3), "abc");
  EXPECT_EQ(Excerpt(std::string(128, 'x')).size(), 128);
}

TEST(ExcerptTest, CutsLongText) {
  EXPECT_EQ(Excerpt("abcd", 3), "abc");
  EXPECT_EQ(Excerpt(std::string(129, 'x')).size(), 128);
}

TEST(ExcerptTest, CutsBetweenCharacters) {
  const std::string text = "ä€𝄞";  // of 2, 3 and 4 bytes
  const size_t ends[] = {0, 0, 2, 2, 2, 5, 5, 5, 5, 9};
  for (size_t most = 0; most < 10; ++most) {
    EXPECT_EQ(Excerpt(text, most).size(), ends[most]) << most;
  }
}

TEST(FirstLineTest, SkipsEmptyLines) {
  EXPECT_EQ(FirstLine("one\ntwo"), "one");
  EXPECT_EQ(FirstLine("\nUnknown builtin op: a::b.\nCould not find"), "Unknown builtin op: a::b.");
  EXPECT_EQ(FirstLine("one"), "one");
  EXPECT_EQ(FirstLine("\n"), "");
}

}  // namespace
}  // namespace braid

#include "client/cli/table.h"

#include "gtest/gtest.h"

namespace braid::cli {
namespace {

TEST(TableTest, NumbersFlushRightTextFlushLeft) {
  EXPECT_EQ(FormatTable({{"model", "version", "reason"}, {"a", "7", ""}, {"long", "12", "why"}}),
            "model  version  reason\n"
            "a            7\n"
            "long        12  why\n");
}

TEST(TableTest, HeadingsAloneAreATable) { EXPECT_EQ(FormatTable({{"a", "b"}}), "a  b\n"); }

TEST(TableTest, WidthIsCountedInCharacters) {
  EXPECT_EQ(FormatTable({{"n", "x"}, {"é", "y"}}), "n  x\né  y\n");
}

TEST(TableTest, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 50), "3072.0 TiB");
}

TEST(TableTest, ControlCharactersDoNotReachTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[31mb\nc\td\x7f"), "a [31mb c d ");
  EXPECT_EQ(Printable("naïve"), "naïve");
  EXPECT_EQ(FormatTable({{"a"}, {"x\ny"}}), "a\nx y\n");
}

}  // namespace
}  // namespace braid::cli

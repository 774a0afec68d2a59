#include "server/rpc/inference/bytes_contents.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

using std::string_literals::operator""s;

auto IsRow(const std::string& bytes, int64_t row) {
  return AllOf(Field(&EncodedRow::bytes, bytes), Field(&EncodedRow::row, row));
}

TEST(SplitBytesTest, ReadsElementsWithoutACopy) {
  const std::string data = "\2\0\0\0ab\0\0\0\0\1\0\0\0c"s;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, SplitBytes(data, 3, "raw", "x"));
  EXPECT_THAT(rows, ElementsAre(IsRow("ab", 0), IsRow("", 1), IsRow("c", 2)));
  EXPECT_EQ(rows[0].bytes.data(), data.data() + 4);
}

TEST(SplitBytesTest, ReadsLengthsOfFourBytes) {
  const std::string data = "\0\1\1\0"s + std::string(0x10100, 'z');
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, SplitBytes(data, 1, "raw", "x"));
  EXPECT_EQ(rows[0].bytes.size(), 0x10100);
}

TEST(SplitBytesTest, RejectsAnotherNumberOfElements) {
  const std::string two = "\1\0\0\0a\1\0\0\0b"s;
  EXPECT_THAT(SplitBytes(two, 1, "raw", "x"),
              RefusesField("raw", HasSubstr("has 2 elements for 'x' (expected 1")));
  EXPECT_THAT(SplitBytes(two, 3, "raw", "x"), RefusesField("raw", HasSubstr("has 2 elements")));
  EXPECT_THAT(SplitBytes("", 1, "raw", "x"), RefusesField("raw", HasSubstr("has 0 elements")));
}

TEST(SplitBytesTest, RejectsDataThatEndsWithinAnElement) {
  EXPECT_THAT(SplitBytes("\1\0\0\0a\1\0"s, 2, "raw", "x"),
              RefusesField("raw", HasSubstr("ends within element 1 of 'x' (expected its length")));
  for (const std::string& data : {"\5\0\0\0abcd"s, "\377\377\377\377abcd"s}) {
    EXPECT_THAT(SplitBytes(data, 1, "raw", "x"),
                RefusesField("raw", HasSubstr("ends within element 0")));
  }
}

TEST(ReadBytesContentsTest, ReadsElementsWithoutACopy) {
  inference::InferTensorContents contents;
  contents.add_bytes_contents("ab");
  contents.add_bytes_contents("");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rows, ReadBytesContents(contents, 2, "c", "x"));
  EXPECT_THAT(rows, ElementsAre(IsRow("ab", 0), IsRow("", 1)));
  EXPECT_EQ(rows[0].bytes.data(), contents.bytes_contents(0).data());
}

TEST(ReadBytesContentsTest, RejectsOtherContents) {
  inference::InferTensorContents contents;
  contents.add_bytes_contents("ab");
  EXPECT_THAT(ReadBytesContents(contents, 2, "c", "x"),
              RefusesField("c", HasSubstr("has 1 elements")));
  contents.add_fp32_contents(1);
  EXPECT_THAT(ReadBytesContents(contents, 1, "c", "x"),
              RefusesField("c.fp32_contents", HasSubstr("bytes_contents")));
}

}  // namespace
}  // namespace braid

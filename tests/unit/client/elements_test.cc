#include "client/cli/elements.h"

#include <cmath>
#include <string>

#include "gtest/gtest.h"

namespace braid::cli {
namespace {

TEST(ElementsTest, HalfPrecision) {
  EXPECT_EQ(FromFp16(0x3c00), 1.0F);
  EXPECT_EQ(FromFp16(0xc000), -2.0F);
  EXPECT_EQ(FromFp16(0x3555), 0.333251953125F);
  EXPECT_EQ(FromFp16(0x7bff), 65504.0F);
  EXPECT_EQ(FromFp16(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(FromFp16(0x03ff), std::ldexp(1023.0F, -24));
  EXPECT_EQ(FromFp16(0x7c00), INFINITY);
  EXPECT_EQ(FromFp16(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(FromFp16(0x7e00)));
  EXPECT_TRUE(std::signbit(FromFp16(0x8000)));
}

TEST(ElementsTest, Bfloat16) {
  EXPECT_EQ(FromBf16(0x3f80), 1.0F);
  EXPECT_EQ(FromBf16(0xc020), -2.5F);
  EXPECT_TRUE(std::isnan(FromBf16(0x7fc0)));
}

TEST(ElementsTest, ValuesAreNestedAsTheShapeSays) {
  EXPECT_EQ(FormatValues(client::MakeTensor<int64_t>("y", {}, {7})), "7");
  EXPECT_EQ(FormatValues(client::MakeTensor<float>("y", {2}, {0.25, -1e-9F})), "[0.25, -1e-09]");
  EXPECT_EQ(FormatValues(client::MakeTensor<int32_t>("y", {2, 2}, {1, 2, 3, 4})),
            "[[1, 2],\n [3, 4]]");
  EXPECT_EQ(FormatValues(client::MakeTensor<uint8_t>("y", {2, 1, 2}, {1, 2, 3, 4})),
            "[[[1, 2]],\n [[3, 4]]]");
  EXPECT_EQ(FormatValues({"y", "BOOL", {2}, std::string("\1\0", 2)}), "[true, false]");
  EXPECT_EQ(FormatValues({"y", "FP16", {1}, std::string("\x00\x3c", 2)}), "[1]");
}

TEST(ElementsTest, ShapesThatLieDoNoHarm) {
  EXPECT_EQ(FormatValues({"y", "INT8", {int64_t{1} << 50, 0}, ""}), "[]");
  EXPECT_EQ(FormatValues({"y", "INT8", {3}, "ab"}), "");
  EXPECT_EQ(FormatValues({"y", "INT8", {-1}, "a"}), "");
  EXPECT_EQ(FormatValues({"y", "BYTES", {1}, "a"}), "");
}

TEST(ElementsTest, JsonKeepsTypes) {
  EXPECT_EQ(JsonValues(client::MakeTensor<double>("y", {3}, {0.1, NAN, 2})).dump(),
            "[0.1,null,2.0]");
  EXPECT_EQ(JsonValues(client::MakeTensor<uint64_t>("y", {1}, {UINT64_MAX})).dump(),
            "[18446744073709551615]");
  EXPECT_EQ(JsonValues({"y", "BOOL", {1}, "\1"}).dump(), "[true]");
}

}  // namespace
}  // namespace braid::cli

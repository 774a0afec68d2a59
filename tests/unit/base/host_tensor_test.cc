#include "server/base/host_tensor.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST(BytesOfTest, IsTheProductTimesTheElementSize) {
  EXPECT_EQ(BytesOf(DataType::kFp32, {30, 5}), 600);
  EXPECT_EQ(BytesOf(DataType::kBf16, {}), 2);
  EXPECT_EQ(BytesOf(DataType::kBool, {kHuge}), static_cast<size_t>(kHuge));
}

TEST(BytesOfTest, IsZeroIfADimensionIsZero) {
  EXPECT_EQ(BytesOf(DataType::kFp64, {0, 7}), 0);
  EXPECT_EQ(BytesOf(DataType::kFp64, {7, 0}), 0);
}

TEST(BytesOfTest, RejectsNegativeDimensions) {
  EXPECT_EQ(BytesOf(DataType::kInt8, {-1}), std::nullopt);
  EXPECT_EQ(BytesOf(DataType::kInt8, {0, -1}), std::nullopt);
}

TEST(BytesOfTest, RejectsOverflow) {
  EXPECT_EQ(BytesOf(DataType::kInt16, {kHuge}), std::nullopt);
  EXPECT_EQ(BytesOf(DataType::kInt8, {int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  // Also if the product wraps around to a small number.
  EXPECT_EQ(BytesOf(DataType::kInt8, {int64_t{1} << 62, 4, 1}), std::nullopt);
}

TEST(ShapeStringTest, IsBracketed) {
  EXPECT_EQ(ShapeString({}), "[]");
  EXPECT_EQ(ShapeString({20, 10}), "[20, 10]");
}

}  // namespace
}  // namespace braid

#include "server/data/convert_elements.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Optional;

template <typename To, typename From>
std::vector<To> Converted(DataType from, const std::vector<From>& values, DataType to,
                          double scale = 1) {
  std::vector<To> converted(values.size());
  EXPECT_EQ(ConvertElements(from, values.data(), to, scale, values.size(), converted.data()),
            std::nullopt);
  return converted;
}

template <typename From>
std::optional<size_t> BadIndex(DataType from, const std::vector<From>& values, DataType to) {
  std::vector<double> room(values.size());
  return ConvertElements(from, values.data(), to, 1, values.size(), room.data());
}

TEST(ConvertElementsTest, ScalesAsPyTorchDoes) {
  const std::vector<uint8_t> pixels = {0, 1, 255};
  EXPECT_THAT(
      Converted<float>(DataType::kUint8, pixels, DataType::kFp32, 1 / 255.0),
      ElementsAre(0.0F, 1 * static_cast<float>(1 / 255.0), 255 * static_cast<float>(1 / 255.0)));
  EXPECT_THAT(Converted<double>(DataType::kUint8, pixels, DataType::kFp64, 1 / 255.0),
              ElementsAre(0.0, 1 * (1 / 255.0), 255 * (1 / 255.0)));
}

TEST(ConvertElementsTest, ConvertsBetweenIntegersInRange) {
  EXPECT_THAT(Converted<uint8_t>(DataType::kInt64, std::vector<int64_t>{0, 255}, DataType::kUint8),
              ElementsAre(0, 255));
  EXPECT_THAT(BadIndex(DataType::kInt64, std::vector<int64_t>{0, 255, 256}, DataType::kUint8),
              Optional(Eq(2u)));
  EXPECT_THAT(BadIndex(DataType::kInt64, std::vector<int64_t>{0, -1}, DataType::kUint64),
              Optional(Eq(1u)));
  EXPECT_THAT(
      BadIndex(DataType::kUint64, std::vector<uint64_t>{uint64_t{1} << 63U}, DataType::kInt64),
      Optional(Eq(0u)));
  EXPECT_THAT(BadIndex(DataType::kInt32, std::vector<int32_t>{0, 1, 2}, DataType::kBool),
              Optional(Eq(2u)));
}

TEST(ConvertElementsTest, ConvertsOnlyWholeNumbersToIntegers) {
  EXPECT_THAT(
      Converted<int64_t>(DataType::kFp64, std::vector<double>{-0.0, 7, -0x1p63}, DataType::kInt64),
      ElementsAre(0, 7, std::numeric_limits<int64_t>::min()));
  for (const double bad : {0.5, 0x1p63, -0x1p64, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(BadIndex(DataType::kFp64, std::vector<double>{1, bad}, DataType::kInt64),
                Optional(Eq(1u)))
        << bad;
  }
  EXPECT_THAT(BadIndex(DataType::kFp32, std::vector<float>{255, 256}, DataType::kUint8),
              Optional(Eq(1u)));
}

TEST(ConvertElementsTest, RoundsHalfPrecisionToNearestEven) {
  // 1 + 2^-8 is halfway between two BF16 numbers, 1 + 3 * 2^-8 as well.
  const std::vector<float> values = {1, 1 + 0x1p-8F, 1 + 0x1p-7F + 0x1p-8F, -2};
  EXPECT_THAT(Converted<uint16_t>(DataType::kFp32, values, DataType::kBf16),
              ElementsAre(0x3F80, 0x3F80, 0x3F82, 0xC000));
  EXPECT_THAT(Converted<uint16_t>(DataType::kFp32, values, DataType::kFp16),
              ElementsAre(0x3C00, 0x3C04, 0x3C0C, 0xC000));
  EXPECT_THAT(
      Converted<float>(DataType::kBf16, std::vector<uint16_t>{0x3F82, 0xC000}, DataType::kFp32),
      ElementsAre(1 + 0x1p-6F, -2));
}

TEST(ConvertElementsTest, ReportsAnElementBeyondTheFirstBlock) {
  std::vector<int16_t> values(5000, 1);
  values[4999] = -1;
  EXPECT_THAT(BadIndex(DataType::kInt16, values, DataType::kUint16), Optional(Eq(4999u)));
}

}  // namespace
}  // namespace braid

#include "client/cpp/tensor.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;

TEST(TensorTest, MapsElementTypesToDatatypes) {
  EXPECT_EQ(DatatypeOf<uint8_t>(), "UINT8");
  EXPECT_EQ(DatatypeOf<uint16_t>(), "UINT16");
  EXPECT_EQ(DatatypeOf<uint32_t>(), "UINT32");
  EXPECT_EQ(DatatypeOf<uint64_t>(), "UINT64");
  EXPECT_EQ(DatatypeOf<int8_t>(), "INT8");
  EXPECT_EQ(DatatypeOf<int16_t>(), "INT16");
  EXPECT_EQ(DatatypeOf<int32_t>(), "INT32");
  EXPECT_EQ(DatatypeOf<int64_t>(), "INT64");
  EXPECT_EQ(DatatypeOf<float>(), "FP32");
  EXPECT_EQ(DatatypeOf<double>(), "FP64");
}

TEST(TensorTest, RoundTripsValues) {
  const Tensor tensor = MakeTensor<int64_t>("ids", {2, 1}, {7, -1});
  EXPECT_EQ(tensor.name, "ids");
  EXPECT_EQ(tensor.data.size(), 16);
  absl::StatusOr<std::vector<int64_t>> values = Values<int64_t>(tensor);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(*values, ElementsAre(7, -1));
}

TEST(TensorTest, EncodedRowsHaveTheirLengths) {
  const std::string large(300, 'x');
  const Tensor tensor = MakeEncoded("image", {"ab", "", large});
  EXPECT_EQ(tensor.datatype, "BYTES");
  EXPECT_THAT(tensor.shape, ElementsAre(3));
  EXPECT_EQ(tensor.data, std::string("\2\0\0\0ab\0\0\0\0\54\1\0\0", 14) + large);
}

TEST(TensorTest, RejectsValuesOfAnotherDatatype) {
  const absl::Status status = Values<float>(MakeTensor<double>("x", {1}, {1.0})).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "tensor 'x': datatype FP64 (expected FP32)");
}

TEST(TensorTest, ComputesByteCounts) {
  EXPECT_EQ(*ByteCount("FP32", {30, 5}), 600);
  EXPECT_EQ(*ByteCount("BF16", {}), 2);
  EXPECT_EQ(*ByteCount("BOOL", {3, 0}), 0);
}

TEST(TensorTest, RejectsInvalidShapesAndDatatypes) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(absl::IsInvalidArgument(ByteCount("FP32", {-1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ByteCount("FP32", {kHuge}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ByteCount("INT8", {1 << 30, 1 << 30}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ByteCount("BYTES", {1}).status()));
}

}  // namespace
}  // namespace braid::client

#include "server/rpc/inference/typed_contents.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using inference::InferTensorContents;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// x of `type` and `elements` elements, its data still to be filled in.
HostTensor Header(DataType type, int64_t elements) {
  HostTensor tensor;
  tensor.name = "x";
  tensor.type = type;
  tensor.shape = {elements};
  tensor.bytes = static_cast<size_t>(elements) * DataTypeSize(type);
  return tensor;
}

absl::Status Read(const InferTensorContents& contents, HostTensor* tensor) {
  return ReadTypedContents(contents, "c", tensor);
}

template <typename T>
InferTensorContents Ints(std::initializer_list<T> values) {
  InferTensorContents contents;
  for (const T value : values) {
    if constexpr (std::is_same_v<T, int32_t>) {
      contents.add_int_contents(value);
    } else if constexpr (std::is_same_v<T, uint32_t>) {
      contents.add_uint_contents(value);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      contents.add_int64_contents(value);
    } else {
      contents.add_uint64_contents(value);
    }
  }
  return contents;
}

// The elements are read as T and are the two of `contents`.
template <typename T>
void ExpectReads(DataType type, const InferTensorContents& contents, T first, T second) {
  HostTensor tensor = Header(type, 2);
  ASSERT_THAT(Read(contents, &tensor), IsOk());
  EXPECT_THAT(ValuesOf<T>(tensor), ElementsAre(first, second)) << DataTypeName(type);
}

TEST(TypedContentsTest, ReadsSignedIntegers) {
  ExpectReads<int8_t>(DataType::kInt8, Ints<int32_t>({-128, 127}), -128, 127);
  ExpectReads<int16_t>(DataType::kInt16, Ints<int32_t>({-32768, 32767}), -32768, 32767);
  ExpectReads<int32_t>(DataType::kInt32, Ints<int32_t>({-5, 7}), -5, 7);
  ExpectReads<int64_t>(DataType::kInt64, Ints<int64_t>({-5, int64_t{1} << 40}), -5,
                       int64_t{1} << 40);
}

TEST(TypedContentsTest, ReadsUnsignedIntegers) {
  ExpectReads<uint8_t>(DataType::kUint8, Ints<uint32_t>({0, 255}), 0, 255);
  ExpectReads<uint16_t>(DataType::kUint16, Ints<uint32_t>({0, 65535}), 0, 65535);
  ExpectReads<uint32_t>(DataType::kUint32, Ints<uint32_t>({1, 0xffffffff}), 1, 0xffffffff);
  ExpectReads<uint64_t>(DataType::kUint64, Ints<uint64_t>({1, ~uint64_t{0}}), 1, ~uint64_t{0});
}

TEST(TypedContentsTest, ReadsBooleansAndFloats) {
  InferTensorContents contents;
  contents.add_bool_contents(true);
  contents.add_bool_contents(false);
  ExpectReads<uint8_t>(DataType::kBool, contents, 1, 0);
  contents.Clear();
  contents.add_fp32_contents(1.5);
  contents.add_fp32_contents(std::numeric_limits<float>::infinity());
  ExpectReads<float>(DataType::kFp32, contents, 1.5, std::numeric_limits<float>::infinity());
  contents.Clear();
  contents.add_fp64_contents(-2.5);
  contents.add_fp64_contents(1e300);
  ExpectReads<double>(DataType::kFp64, contents, -2.5, 1e300);
}

TEST(TypedContentsTest, DoesNotCopyElementsOfEqualWidth) {
  const InferTensorContents contents = Ints<int64_t>({1, 2});
  HostTensor tensor = Header(DataType::kInt64, 2);
  ASSERT_THAT(Read(contents, &tensor), IsOk());
  EXPECT_EQ(tensor.data, contents.int64_contents().data());
}

TEST(TypedContentsTest, TheTensorOwnsItsCopy) {
  HostTensor tensor = Header(DataType::kInt8, 2);
  {
    const InferTensorContents contents = Ints<int32_t>({3, 4});
    ASSERT_THAT(Read(contents, &tensor), IsOk());
  }
  EXPECT_THAT(ValuesOf<int8_t>(tensor), ElementsAre(3, 4));
}

TEST(TypedContentsTest, RejectsNumbersOutOfRange) {
  for (const auto& [type, value] : {std::pair{DataType::kInt8, 128},
                                    {DataType::kInt8, -129},
                                    {DataType::kInt16, 32768},
                                    {DataType::kInt16, -32769}}) {
    HostTensor tensor = Header(type, 2);
    EXPECT_THAT(Read(Ints<int32_t>({0, value}), &tensor),
                RefusesField("c", AllOf(HasSubstr(absl::StrCat("element 1 of 'x' is ", value)),
                                        HasSubstr(DataTypeName(type)))));
  }
  for (const auto& [type, value] :
       {std::pair{DataType::kUint8, 256U}, {DataType::kUint16, 65536U}}) {
    HostTensor tensor = Header(type, 1);
    EXPECT_THAT(Read(Ints<uint32_t>({value}), &tensor),
                RefusesField("c", HasSubstr(absl::StrCat("is ", value))));
  }
}

TEST(TypedContentsTest, RejectsWrongCounts) {
  for (const auto& values : {Ints<int64_t>({1}), Ints<int64_t>({1, 2, 3}), InferTensorContents()}) {
    HostTensor tensor = Header(DataType::kInt64, 2);
    EXPECT_THAT(Read(values, &tensor),
                RefusesField("c", AllOf(HasSubstr("elements for 'x'"), HasSubstr("expected 2"))));
  }
}

TEST(TypedContentsTest, RejectsOtherFieldsByName) {
  HostTensor tensor = Header(DataType::kInt64, 1);
  EXPECT_THAT(Read(Ints<int32_t>({1}), &tensor),
              RefusesField("c.int_contents", HasSubstr("expected int64_contents for INT64")));
  InferTensorContents both = Ints<int64_t>({1});
  both.add_fp32_contents(1);
  EXPECT_THAT(Read(both, &tensor), RefusesField("c.fp32_contents", HasSubstr("'x'")));
  both.Clear();
  both.add_bytes_contents("text");
  EXPECT_THAT(Read(both, &tensor), RefusesField("c.bytes_contents", HasSubstr("int64_contents")));
}

TEST(TypedContentsTest, HalfPrecisionRequiresRawContents) {
  for (const DataType type : {DataType::kFp16, DataType::kBf16}) {
    HostTensor tensor = Header(type, 1);
    EXPECT_THAT(
        Read(Ints<uint32_t>({1}), &tensor),
        RefusesField("c", AllOf(HasSubstr(DataTypeName(type)), HasSubstr("raw_input_contents"))));
  }
}

TEST(TypedContentsTest, AcceptsEmptyTensors) {
  HostTensor tensor = Header(DataType::kInt8, 0);
  EXPECT_THAT(Read(InferTensorContents(), &tensor), IsOk());
}

}  // namespace
}  // namespace braid

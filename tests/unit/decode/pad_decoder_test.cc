#include "server/decode/pad_decoder.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr RowType IdsType() { return {DataType::kInt64, {kUnknownDim}}; }

template <typename Element>
std::vector<Element> ElementsOf(const HostTensor& tensor) {
  std::vector<Element> elements(tensor.bytes / sizeof(Element));
  std::memcpy(elements.data(), tensor.data, tensor.bytes);
  return elements;
}

template <typename Element>
std::vector<EncodedRow> RowsOfLists(const std::vector<std::vector<Element>>& lists) {
  std::vector<EncodedRow> rows;
  for (const std::vector<Element>& list : lists) {
    rows.push_back({{reinterpret_cast<const char*>(list.data()), list.size() * sizeof(Element)},
                    static_cast<int64_t>(10 + rows.size())});
  }
  return rows;
}

TEST(PadDecoderTest, PadsRowsToTheLongestOneAndMarksElements) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, MakePadDecoder({.value = -1, .mask = "mask"},
                                                                IdsType(), DataType::kFp32, "pad"));
  EXPECT_TRUE(decoder->takes_lists());
  const std::vector<std::vector<int64_t>> lists = {{7, 8}, {}, {1, 2, 3}};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, decoder->Decode(RowsOfLists(lists), {}));
  ASSERT_THAT(tensors, SizeIs(2));
  EXPECT_THAT(tensors[0].shape, ElementsAre(3, 3));
  EXPECT_THAT(ElementsOf<int64_t>(tensors[0]), ElementsAre(7, 8, -1, -1, -1, -1, 1, 2, 3));
  EXPECT_EQ(tensors[1].name, "mask");
  EXPECT_EQ(tensors[1].type, DataType::kFp32);
  EXPECT_THAT(ElementsOf<float>(tensors[1]), ElementsAre(1, 1, 0, 0, 0, 0, 1, 1, 1));
}

TEST(PadDecoderTest, RoundsLengthsUp) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder,
                             MakePadDecoder({.multiple = 4}, IdsType(), DataType::kInt64, "pad"));
  for (const auto& [length, padded] : {std::pair{0, 4}, {1, 4}, {4, 4}, {5, 8}}) {
    const std::vector<std::vector<int64_t>> lists = {std::vector<int64_t>(length, 1)};
    BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, decoder->Decode(RowsOfLists(lists), {}));
    ASSERT_THAT(tensors, SizeIs(1));
    EXPECT_THAT(tensors[0].shape, ElementsAre(1, padded));
  }
}

TEST(PadDecoderTest, PadsListsOfVectors) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, MakePadDecoder({.value = 0.5, .mask = "mask"},
                                                                {DataType::kFp32, {kUnknownDim, 2}},
                                                                DataType::kBool, "pad"));
  const std::vector<std::vector<float>> lists = {{1, 2}, {3, 4, 5, 6}};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, decoder->Decode(RowsOfLists(lists), {}));
  EXPECT_THAT(tensors[0].shape, ElementsAre(2, 2, 2));
  EXPECT_THAT(ElementsOf<float>(tensors[0]), ElementsAre(1, 2, 0.5, 0.5, 3, 4, 5, 6));
  EXPECT_THAT(ElementsOf<uint8_t>(tensors[1]), ElementsAre(1, 0, 1, 1));
}

TEST(PadDecoderTest, LimitsTheBytes) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder,
                             MakePadDecoder({}, IdsType(), DataType::kInt64, "pad"));
  const std::vector<std::vector<int64_t>> lists = {{1}, {1, 2, 3}};
  EXPECT_THAT(decoder->Decode(RowsOfLists(lists), {.max_bytes = 48}), IsOk());
  EXPECT_THAT(decoder->Decode(RowsOfLists(lists), {.max_bytes = 47}).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("row 11: padding 2 rows to 3 elements takes 24 bytes per row")));
}

TEST(PadDecoderTest, RejectsValuesThatTheTypeDoesNotHave) {
  for (const auto& [type, value] : {std::pair{DataType::kInt64, 0.5},
                                    {DataType::kUint8, 256.0},
                                    {DataType::kUint8, -1.0},
                                    {DataType::kInt64, 9223372036854775808.0},
                                    {DataType::kBool, 2.0},
                                    {DataType::kFp16, 1.0}}) {
    EXPECT_THAT(
        MakePadDecoder({.value = value}, {type, {kUnknownDim}}, DataType::kInt64, "pad").status(),
        RefusesField("pad.value", HasSubstr(DataTypeName(type))));
  }
  EXPECT_THAT(MakePadDecoder({.mask = "mask"}, IdsType(), DataType::kBf16, "pad").status(),
              RefusesField("pad.mask", HasSubstr("input 'mask' is BF16")));
}

}  // namespace
}  // namespace braid

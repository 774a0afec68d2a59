#include "server/data/encoded/bytes_column.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrow/api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/data/tables.h"

namespace braid {
namespace {

std::shared_ptr<arrow::Array> ArrayOf(const std::shared_ptr<arrow::DataType>& type,
                                      const std::string& values) {
  return MakeBatch({{"x", type, values}})->column(0);
}

TEST(BytesColumn, ReadsBinaryAndStringColumns) {
  for (const auto& type :
       {arrow::binary(), arrow::large_binary(), arrow::utf8(), arrow::large_utf8()}) {
    ASSERT_TRUE(HoldsBytes(*type)) << type->ToString();
    const auto array = ArrayOf(type, R"(["ab", null, ""])");
    EXPECT_EQ(BytesOfRow(*array, 0), "ab");
    EXPECT_EQ(BytesOfRow(*array, 1), std::nullopt);
    EXPECT_EQ(BytesOfRow(*array, 2), "");
  }
}

TEST(BytesColumn, ReadsDictionaries) {
  const auto type = arrow::dictionary(arrow::int32(), arrow::utf8());
  ASSERT_TRUE(HoldsBytes(*type));
  EXPECT_EQ(BytesOfRow(*ArrayOf(type, R"(["a", "b", "a"])"), 2), "a");
}

TEST(BytesColumn, ReadsImagesOfHuggingFaceDatasets) {
  const auto type =
      arrow::struct_({arrow::field("bytes", arrow::binary()), arrow::field("path", arrow::utf8())});
  ASSERT_TRUE(HoldsBytes(*type));
  const auto array =
      ArrayOf(type, R"([{"bytes": "jpg", "path": "a.jpg"}, {"bytes": null, "path": "b"}, null])");
  EXPECT_EQ(BytesOfRow(*array, 0), "jpg");
  EXPECT_EQ(BytesOfRow(*array, 1), std::nullopt);
  EXPECT_EQ(BytesOfRow(*array, 2), std::nullopt);
  EXPECT_EQ(BytesOfRow(*array->Slice(1), 0), std::nullopt);
}

// Returns the elements of a list of int32.
std::optional<std::vector<int32_t>> ListOf(const arrow::Array& array, int64_t row) {
  const std::optional<absl::string_view> bytes = BytesOfRow(array, row);
  if (!bytes) {
    return std::nullopt;
  }
  std::vector<int32_t> elements(bytes->size() / sizeof(int32_t));
  std::copy_n(bytes->data(), bytes->size(), reinterpret_cast<char*>(elements.data()));
  return elements;
}

TEST(BytesColumn, ReadsListsOfNumbers) {
  for (const auto& type : {arrow::list(arrow::int32()), arrow::large_list(arrow::int32())}) {
    ASSERT_TRUE(HoldsLists(*type)) << type->ToString();
    const auto array = ArrayOf(type, "[[1, 2], null, [], [3], [4, null]]");
    EXPECT_EQ(ListOf(*array, 0), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(ListOf(*array, 1), std::nullopt);
    EXPECT_EQ(ListOf(*array, 2), std::vector<int32_t>());
    EXPECT_EQ(ListOf(*array, 4), std::nullopt);
    EXPECT_EQ(ListOf(*array->Slice(3), 0), std::vector<int32_t>{3});
  }
}

TEST(BytesColumn, ReadsListsOfVectors) {
  const auto type = arrow::list(arrow::fixed_size_list(arrow::int32(), 2));
  ASSERT_TRUE(HoldsLists(*type));
  const auto array = ArrayOf(type, "[[[1, 2]], [[3, 4], [5, 6]], [[7, null]], [null]]");
  EXPECT_EQ(ListOf(*array->Slice(1), 0), (std::vector<int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(ListOf(*array, 2), std::nullopt);
  EXPECT_EQ(ListOf(*array, 3), std::nullopt);
}

TEST(BytesColumn, RejectsOtherLists) {
  EXPECT_FALSE(HoldsLists(*arrow::list(arrow::boolean())));
  EXPECT_FALSE(HoldsLists(*arrow::list(arrow::utf8())));
  EXPECT_FALSE(HoldsLists(*arrow::list(arrow::list(arrow::int32()))));
  EXPECT_FALSE(HoldsLists(*arrow::fixed_size_list(arrow::int32(), 2)));
}

TEST(BytesColumn, RejectsOtherTypes) {
  EXPECT_FALSE(HoldsBytes(*arrow::int64()));
  EXPECT_FALSE(HoldsBytes(*arrow::list(arrow::uint8())));
  EXPECT_FALSE(HoldsBytes(*arrow::struct_({arrow::field("path", arrow::utf8())})));
}

}  // namespace
}  // namespace braid

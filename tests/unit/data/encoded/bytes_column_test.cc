#include "server/data/encoded/bytes_column.h"

#include <memory>

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

TEST(BytesColumn, RejectsOtherTypes) {
  EXPECT_FALSE(HoldsBytes(*arrow::int64()));
  EXPECT_FALSE(HoldsBytes(*arrow::list(arrow::uint8())));
  EXPECT_FALSE(HoldsBytes(*arrow::struct_({arrow::field("path", arrow::utf8())})));
}

}  // namespace
}  // namespace braid

#include "server/data/output/json_rows.h"

#include <memory>
#include <string>

#include "arrow/api.h"
#include "arrow/json/from_string.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

// Formats the value that `json` describes in Arrow's notation for tests.
std::string Format(const std::shared_ptr<arrow::DataType>& type, const std::string& json) {
  const auto array = arrow::json::ArrayFromJSONString(type, json).ValueOrDie();
  const auto schema = arrow::schema({arrow::field("a", type)});
  std::string text;
  EXPECT_THAT(JsonRows(*schema).Append(*arrow::RecordBatch::Make(schema, 1, {array}), 0, &text),
              IsOk());
  return text;
}

TEST(JsonRowsTest, StructsAreObjects) {
  const auto type = arrow::struct_(
      {arrow::field("x", arrow::int64()), arrow::field("y", arrow::list(arrow::utf8()))});
  EXPECT_EQ(Format(type, R"([{"x": 1, "y": ["b", null]}])"), R"({"a":{"x":1,"y":["b",null]}})");
  EXPECT_EQ(Format(type, "[null]"), R"({"a":null})");
}

TEST(JsonRowsTest, MapsAreListsOfKeysAndValues) {
  EXPECT_EQ(Format(arrow::map(arrow::utf8(), arrow::int32()), R"([[["k", 1], ["l", null]]])"),
            R"({"a":[{"key":"k","value":1},{"key":"l","value":null}]})");
}

TEST(JsonRowsTest, BytesAreBase64) {
  EXPECT_EQ(Format(arrow::binary(), R"(["foob"])"), R"({"a":"Zm9vYg=="})");
  EXPECT_EQ(Format(arrow::fixed_size_binary(3), R"(["foo"])"), R"({"a":"Zm9v"})");
}

TEST(JsonRowsTest, CategoriesAreTheirValues) {
  EXPECT_EQ(Format(arrow::dictionary(arrow::int8(), arrow::utf8()), R"(["red"])"),
            R"({"a":"red"})");
}

}  // namespace
}  // namespace braid

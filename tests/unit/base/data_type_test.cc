#include "server/base/data_type.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(DataTypeTest, EveryNameHasItsTypeAndSize) {
  const std::map<std::string, size_t> sizes = {
      {"BOOL", 1}, {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8},
      {"INT8", 1}, {"INT16", 2}, {"INT32", 4},  {"INT64", 8},  {"FP16", 2},
      {"BF16", 2}, {"FP32", 4},  {"FP64", 8}};
  for (const auto& [name, size] : sizes) {
    const auto type = DataTypeFromName(name);
    ASSERT_TRUE(type) << name;
    EXPECT_EQ(DataTypeName(*type), name);
    EXPECT_EQ(DataTypeSize(*type), size) << name;
  }
}

TEST(DataTypeTest, RejectsOtherNames) {
  for (const char* name : {"", "BYTES", "fp32", "FP8", "FP32 ", "TYPE_FP32"}) {
    EXPECT_FALSE(DataTypeFromName(name)) << name;
  }
}

TEST(DataTypeTest, FloatingPointTypesAreThoseOfTheirName) {
  const std::vector<std::string> names = absl::StrSplit(AllDataTypeNames(), ", ");
  EXPECT_EQ(names.size(), 13);
  for (const std::string& name : names) {
    const bool floating = name == "FP16" || name == "BF16" || name == "FP32" || name == "FP64";
    EXPECT_EQ(IsFloatingPoint(*DataTypeFromName(name)), floating) << name;
  }
}

}  // namespace
}  // namespace braid

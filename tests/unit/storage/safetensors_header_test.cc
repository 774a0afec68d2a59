#include "server/storage/safetensors_header.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One tensor, "w", of 24 bytes, with another value in one of its fields.
std::string WithDtype(const std::string& dtype) {
  return absl::StrCat(R"({"w":{"dtype":)", dtype, R"(,"shape":[2,3],"data_offsets":[0,24]}})");
}
std::string WithShape(const std::string& shape) {
  return absl::StrCat(R"({"w":{"dtype":"F32","shape":)", shape, R"(,"data_offsets":[0,24]}})");
}
std::string WithOffsets(const std::string& offsets) {
  return absl::StrCat(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":)", offsets, "}}");
}

// "1,1,…,".
std::string Ones(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "1,";
  }
  return text;
}

TEST(ParseSafetensorsHeaderTest, SortsEntriesByTheirBytes) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      ParseSafetensorsHeader(R"({"b":{"dtype":"I64","shape":[],"data_offsets":[6,14]},)"
                             R"("a":{"shape":[3,1],"data_offsets":[0,6],"dtype":"BF16"},)"
                             R"("none":{"dtype":"F64","shape":[0,7],"data_offsets":[6,6]},)"
                             R"("__metadata__":{"format":"pt","":"é"}}      )",
                             14));
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].type, DataType::kBf16);
  EXPECT_THAT(header.entries[0].shape, ElementsAre(3, 1));
  EXPECT_EQ(header.entries[1].name, "none");
  EXPECT_EQ(header.entries[2].name, "b");
  EXPECT_EQ(header.entries[2].type, DataType::kInt64);
  EXPECT_THAT(header.entries[2].shape, IsEmpty());
  EXPECT_EQ(header.entries[2].begin, 6u);
  EXPECT_EQ(header.entries[2].end, 14u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.metadata.at(""), "é");
}

TEST(ParseSafetensorsHeaderTest, AcceptsAnEmptyHeader) {
  BRAID_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, ParseSafetensorsHeader("{}", 0));
  EXPECT_THAT(header.entries, IsEmpty());
}

struct Hostile {
  std::string text;
  const char* message;
};

void ExpectDataLoss(const std::vector<Hostile>& headers) {
  for (const auto& [text, message] : headers) {
    EXPECT_THAT(ParseSafetensorsHeader(text, 24),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)))
        << text.substr(0, 200);
  }
}

const std::string kGood = R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";

TEST(HostileSafetensorsHeaderTest, Json) {
  const std::string deep(1 << 20, '[');
  ExpectDataLoss({{"", "does not start with '{'"},
                  {absl::StrCat(" {", kGood, "}"), "does not start with '{'"},
                  {absl::StrCat("\xEF\xBB\xBF{", kGood, "}"), "does not start with '{'"},
                  {"[]", "does not start with '{'"},
                  {"{", "invalid JSON at byte"},
                  {absl::StrCat("{", kGood), "invalid JSON at byte"},
                  {absl::StrCat("{", kGood, "} {}"), "invalid JSON at byte"},
                  {absl::StrCat("{", kGood, ",}"), "invalid JSON at byte"},
                  {absl::StrCat("{", kGood, "}", std::string(1, '\0')), "zero byte"},
                  {absl::StrCat("{", kGood, "}", std::string(1, '\0'), "{"), "zero byte"},
                  {absl::StrCat("{/**/", kGood, "}"), "invalid JSON at byte"},
                  {"{\"\xFF\":{}}", "invalid JSON at byte"},
                  {absl::StrCat("{", kGood, ",", kGood, "}"), "duplicate key 'w'"},
                  {absl::StrCat(R"({"w":)", deep), "unexpected array"},
                  {absl::StrCat(R"({"w":{"shape":)", deep), "unexpected array"},
                  {R"({"w":{"shape":[{}]}})", "'w': unexpected object"},
                  {R"({"w":{"shape":{}}})", "'w': unexpected object"},
                  {R"({"w":1})", "unexpected number"},
                  {R"({"w":"F32"})", "unexpected string"},
                  {R"({"w":null})", "unexpected null"}});
}

TEST(HostileSafetensorsHeaderTest, Metadata) {
  ExpectDataLoss({{R"({"__metadata__":1})", "unexpected number"},
                  {R"({"__metadata__":{"a":1}})", "unexpected number"},
                  {R"({"__metadata__":{"a":{}}})", "unexpected object"},
                  {R"({"__metadata__":{"a":"1","a":"2"}})", "duplicate key 'a'"},
                  {R"({"__metadata__":{},"__metadata__":{}})", "duplicate key"}});
}

TEST(HostileSafetensorsHeaderTest, Fields) {
  ExpectDataLoss({{R"({"w":{}})", "'w': expected a dtype, a shape and data_offsets"},
                  {R"({"w":{"dtype":"F32","shape":[2,3]}})", "expected a dtype, a shape"},
                  {R"({"w":{"dtype":"F32","dtype":"F64"}})", "duplicate key 'dtype'"},
                  {R"({"w":{"device":"cpu"}})", "unexpected key 'device'"},
                  {WithDtype("\"F8_E4M3\""), "unknown dtype 'F8_E4M3' (expected BOOL"},
                  {WithDtype("\"f32\""), "unknown dtype 'f32'"},
                  {WithDtype("\"\""), "unknown dtype ''"},
                  {WithDtype("32"), "unexpected number"},
                  {WithDtype("[]"), "unexpected array"},
                  {WithShape("\"2,3\""), "unexpected string"},
                  {WithShape("6"), "unexpected number"},
                  {WithShape("[2,-3]"), "unexpected negative number"},
                  {WithShape("[2.0,3]"), "unexpected fraction"},
                  {WithShape("[6e0]"), "unexpected fraction"},
                  {WithShape("[true,6]"), "unexpected boolean"},
                  {WithShape("[9223372036854775808]"), "too large"},
                  {WithShape("[1e999]"), "invalid JSON at byte"},
                  {WithShape(absl::StrCat("[", Ones(64), "1]")), "more than 64 numbers"},
                  {WithOffsets("[0]"), "1 data_offsets (expected 2)"},
                  {WithOffsets("[0,24,24]"), "3 data_offsets (expected 2)"},
                  {WithOffsets("[-1,23]"), "unexpected negative number"},
                  {WithOffsets("{}"), "unexpected object"}});
}

TEST(HostileSafetensorsHeaderTest, Layout) {
  ExpectDataLoss(
      {{"{}", "end at byte 0 of the data (expected 24"},
       {WithShape("[2,4]"), "24 bytes (expected 32 for F32 [2, 4]"},
       {WithShape("[]"), "24 bytes (expected 4 for F32 []"},
       {WithShape("[0]"), "24 bytes (expected 0"},
       {WithShape("[4294967296,4294967296]"), "expected an impossible number"},
       // Wraps around to 24 bytes.
       {WithShape("[4611686018427387904,4,6]"), "expected an impossible number"},
       {WithOffsets("[24,0]"), "data_offsets [24, 0] of 24"},
       {WithOffsets("[0,28]"), "data_offsets [0, 28] of 24 bytes"},
       {WithOffsets("[0,20]"), "20 bytes (expected 24"},
       {WithOffsets("[9223372036854775800,9223372036854775807]"), "of 24 bytes of data"},
       {R"({"a":{"dtype":"U8","shape":[20],"data_offsets":[0,20]}})",
        "end at byte 20 of the data (expected 24"},
       {R"({"a":{"dtype":"U8","shape":[20],"data_offsets":[4,24]}})",
        "'a': starts at byte 4 of the data (expected 0"},
       {R"({"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]},)"
        R"("b":{"dtype":"U8","shape":[12],"data_offsets":[12,24]}})",
        "'b': starts at byte 12 of the data (expected 10"},
       {R"({"a":{"dtype":"U8","shape":[14],"data_offsets":[0,14]},)"
        R"("b":{"dtype":"U8","shape":[12],"data_offsets":[12,24]}})",
        "'b': starts at byte 12 of the data (expected 14"},
       {absl::StrCat("{", kGood, R"(,"v":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}})"),
        "'w': starts at byte 0 of the data (expected 24"}});
}

TEST(SafetensorsHeaderTextTest, RoundTrips) {
  const SafetensorsHeader header = {
      {{"w \"é\n", DataType::kFp16, {2, 3}, 0, 12}, {"b", DataType::kBool, {}, 12, 13}},
      {{"format", "pt"}}};
  BRAID_ASSERT_OK_AND_ASSIGN(const std::string text, SafetensorsHeaderText(header));
  BRAID_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader read, ParseSafetensorsHeader(text, 13));
  ASSERT_EQ(read.entries.size(), 2u);
  EXPECT_EQ(read.entries[0].name, "w \"é\n");
  EXPECT_EQ(read.entries[0].type, DataType::kFp16);
  EXPECT_EQ(read.entries[1].begin, 12u);
  EXPECT_EQ(read.metadata, header.metadata);
}

TEST(SafetensorsHeaderTextTest, NamesEveryType) {
  const char* const names[] = {"BOOL", "U8",  "U16", "U32",  "U64", "I8", "I16",
                               "I32",  "I64", "F16", "BF16", "F32", "F64"};
  size_t type = 0;
  for (const char* name : names) {
    const auto data_type = static_cast<DataType>(type++);
    const size_t bytes = DataTypeSize(data_type);
    BRAID_ASSERT_OK_AND_ASSIGN(const std::string text,
                               SafetensorsHeaderText({{{"w", data_type, {}, 0, bytes}}, {}}));
    EXPECT_EQ(nlohmann::json::parse(text)["w"]["dtype"], name);
    BRAID_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader read, ParseSafetensorsHeader(text, bytes));
    EXPECT_EQ(read.entries[0].type, data_type);
  }
}

TEST(SafetensorsHeaderTextTest, RejectsInvalidNames) {
  const SafetensorsEntry entry = {"w", DataType::kBool, {}, 0, 1};
  EXPECT_THAT(SafetensorsHeaderText({{entry, entry}, {}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("invalid tensor name 'w'")));
  for (const char* name : {"__metadata__", "\xFF"}) {
    EXPECT_THAT(SafetensorsHeaderText({{{name, DataType::kBool, {}, 0, 1}}, {}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("invalid tensor name")));
  }
  EXPECT_THAT(SafetensorsHeaderText({{entry}, {{"key", "\xC3"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("metadata 'key'")));
}

}  // namespace
}  // namespace braid

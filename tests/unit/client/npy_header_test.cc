#include "client/cli/npy_header.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of this version with this text as its header.
std::string File(const std::string& text, char major = 1, char minor = 0) {
  std::string file = "\x93NUMPY";
  file +=
      {major, minor, static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  if (major > 1) file += std::string(2, '\0');
  return file + text;
}

std::string Dict(const std::string& descr, const std::string& shape) {
  return absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", shape, ", }\n");
}

TEST(NpyHeaderTest, ReadsWhatItWrites) {
  const char* datatypes[] = {"BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8",
                             "INT16", "INT32", "INT64",  "FP16",   "FP32",   "FP64"};
  const std::vector<int64_t> shapes[] = {{}, {0}, {7}, {60000, 1, 28, 28}, {int64_t{1} << 62}};
  for (const char* datatype : datatypes) {
    for (const std::vector<int64_t>& shape : shapes) {
      absl::StatusOr<std::string> text = FormatNpyHeader(datatype, shape);
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(text->size() % 64, 0);
      EXPECT_EQ(text->back(), '\n');
      absl::StatusOr<NpyHeader> header = ParseNpyHeader(*text + "elements");
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->datatype, datatype);
      EXPECT_EQ(header->shape, shape);
      EXPECT_EQ(header->data_offset, text->size());
    }
  }
}

TEST(NpyHeaderTest, WritesWhatNumpyWrites) {
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  EXPECT_EQ(*FormatNpyHeader("FP32", {2, 3}), File(text + std::string(58, ' ') + "\n"));
}

TEST(NpyHeaderTest, Bfloat16CannotBeWritten) {
  EXPECT_TRUE(absl::IsInvalidArgument(FormatNpyHeader("BF16", {1}).status()));
}

TEST(NpyHeaderTest, VersionTwoHasALongLength) {
  const std::string file = File(Dict("<i8", "(2,)"), 2);
  absl::StatusOr<NpyHeader> header = ParseNpyHeader(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->datatype, "INT64");
  EXPECT_EQ(header->data_offset, file.size());
}

TEST(NpyHeaderTest, KeysComeInAnyOrderAndSpacing) {
  absl::StatusOr<NpyHeader> header =
      ParseNpyHeader(File("  { \"shape\":( 2 ,3,),'fortran_order' :False,\n'descr':\"|u1\"}   \n"));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->datatype, "UINT8");
  EXPECT_THAT(header->shape, ElementsAre(2, 3));
}

struct Hostile {
  std::string file;
  std::string message;
};

class HostileNpyHeaderTest : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileNpyHeaderTest, IsRefusedAndSaysWhy) {
  const absl::Status status = ParseNpyHeader(GetParam().file).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Preamble, HostileNpyHeaderTest,
    ::testing::Values(Hostile{"", "not a .npy file"}, Hostile{"PK\x03\x04 an .npz", "not a .npy"},
                      Hostile{"\x93NUMPY", "not a .npy"}, Hostile{"\x93NUMPY\x01", "not a .npy"},
                      Hostile{File("{}", 3), "format 3.0 is not supported"},
                      Hostile{File("{}", 1, 1), "format 1.1 is not supported"},
                      Hostile{"\x93NUMPY\x01" + std::string("\0\x10", 2), "the file ends in it"},
                      Hostile{"\x93NUMPY\x02" + std::string("\0\xff\xff\xff\xff{", 6),
                              "the file ends in it"},
                      Hostile{File(Dict("<f4", "(1,)")).substr(0, 40), "the file ends in it"}));

INSTANTIATE_TEST_SUITE_P(
    Dictionary, HostileNpyHeaderTest,
    ::testing::Values(Hostile{File(""), "no '{'"}, Hostile{File("{"), "expected"},
                      Hostile{File("{}"), "is missing"}, Hostile{File("{'descr"), "expected"},
                      Hostile{File("{'descr': '<f4'"), "expected ',' or '}'"},
                      Hostile{File("{'descr': '<f4', 'shape': (1,), }"), "is missing"},
                      Hostile{File("{'descr': '<f4', 'descr': '<f4', }"), "'descr' comes twice"},
                      Hostile{File("{'evil': 1, }"), "unknown key 'evil'"},
                      Hostile{File(Dict("<f4", "(1,)") + "x"), "text after '}'"},
                      Hostile{File("{'fortran_order': __import__('os'), }"),
                              "neither True nor False"},
                      Hostile{File("{'fortran_order': True, }"), "ascontiguousarray"}));

INSTANTIATE_TEST_SUITE_P(
    Values, HostileNpyHeaderTest,
    ::testing::Values(Hostile{File(Dict(">f4", "(1,)")), "dtype '>f4' is not supported"},
                      Hostile{File(Dict("|O", "(1,)")), "dtype '|O' is not supported"},
                      Hostile{File(Dict("<c8", "(1,)")), "dtype '<c8' is not supported"},
                      Hostile{File(Dict("", "(1,)")), "dtype '' is not supported"},
                      Hostile{File("{'descr': [('a', '<f4')], }"), "structured arrays"},
                      Hostile{File(Dict("<f4", "3")), "'shape' is no tuple"},
                      Hostile{File(Dict("<f4", "(3)")), "'shape' is no tuple"},
                      Hostile{File(Dict("<f4", "(3 4)")), "'shape' is no tuple"},
                      Hostile{File(Dict("<f4", "(-1,)")), "a dimension is no integer"},
                      Hostile{File(Dict("<f4", "(,)")), "a dimension is no integer"},
                      Hostile{File(Dict("<f4", "(1e3,)")), "'shape' is no tuple"},
                      Hostile{File(Dict("<f4", "(9223372036854775808,)")),
                              "a dimension is no integer"}));

TEST(NpyHeaderTest, TooManyDimensionsAreRefused) {
  std::string shape = "(";
  for (int i = 0; i < 65; ++i) shape += "1, ";
  const absl::Status status = ParseNpyHeader(File(Dict("<f4", shape + ")"))).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 64 dimensions"));
}

TEST(NpyHeaderTest, EveryTruncationIsRefused) {
  const std::string file = File("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}");
  ASSERT_TRUE(ParseNpyHeader(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ParseNpyHeader(file.substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace braid::cli

#include "server/data/npy_header.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Header of version 1.0 with the dict `text`.
std::string Npy(const std::string& text) {
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\x00", 8),
                      std::string({static_cast<char>(text.size()), '\0'}), text);
}

TEST(NpyHeaderTest, RoundTrips) {
  BRAID_ASSERT_OK_AND_ASSIGN(const std::string text, FormatNpyHeader(DataType::kFp32, {3, 28, 28}));
  EXPECT_EQ(text.size(), kNpyHeaderBytes);
  EXPECT_EQ(text.back(), '\n');
  BRAID_ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(text + "data"));
  EXPECT_EQ(header.type, DataType::kFp32);
  EXPECT_THAT(header.shape, ElementsAre(3, 28, 28));
  EXPECT_EQ(header.data_offset, kNpyHeaderBytes);
}

TEST(NpyHeaderTest, ReadsWhatNumpyWrites) {
  const std::string text = "{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }   \n";
  BRAID_ASSERT_OK_AND_ASSIGN(const NpyHeader vector, ParseNpyHeader(Npy(text)));
  EXPECT_EQ(vector.type, DataType::kInt64);
  EXPECT_THAT(vector.shape, ElementsAre(5));
  EXPECT_EQ(vector.data_offset, 10 + text.size());
  BRAID_ASSERT_OK_AND_ASSIGN(
      const NpyHeader scalar,
      ParseNpyHeader(Npy("{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n")));
  EXPECT_THAT(scalar.shape, IsEmpty());
}

TEST(NpyHeaderTest, NamesWhatIsNotSupported) {
  EXPECT_THAT(ParseNpyHeader(Npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ascontiguousarray")));
  EXPECT_THAT(ParseNpyHeader(Npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dtype '>f4'")));
  EXPECT_THAT(
      ParseNpyHeader(Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("structured array")));
  EXPECT_THAT(FormatNpyHeader(DataType::kBf16, {1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("BF16")));
}

TEST(NpyHeaderTest, RejectsDamagedHeaders) {
  BRAID_ASSERT_OK_AND_ASSIGN(const std::string text, FormatNpyHeader(DataType::kFp32, {3}));
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(ParseNpyHeader(text.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("npy")));
  }
  for (const char* dict :
       {"", "{", "{}", "{'descr': '<f4', 'shape': (3,)}", "{'descr': '<f4', 'x': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x"}) {
    EXPECT_THAT(ParseNpyHeader(Npy(dict)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << dict;
  }
}

}  // namespace
}  // namespace braid

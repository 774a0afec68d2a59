#include "client/cli/npy.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class NpyTest : public ::testing::Test {
 protected:
  void TearDown() override { std::remove(path_.c_str()); }

  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  const std::string path_ = ::testing::TempDir() + "npy_test_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".npy";
};

TEST_F(NpyTest, ReadsWhatItWrites) {
  const client::Tensor tensor = client::MakeTensor<float>("x", {2, 2}, {1, 2, 3, 4});
  ASSERT_TRUE(WriteNpy(path_, tensor).ok());
  absl::StatusOr<NpyFile> file = NpyFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const client::Tensor read = file->ToTensor("y");
  EXPECT_EQ(read.name, "y");
  EXPECT_EQ(read.datatype, "FP32");
  EXPECT_EQ(read.shape, tensor.shape);
  EXPECT_EQ(read.data, tensor.data);
}

TEST_F(NpyTest, EmptyArraysAndScalars) {
  ASSERT_TRUE(WriteNpy(path_, {"x", "INT8", {0, 3}, ""}).ok());
  absl::StatusOr<NpyFile> empty = NpyFile::Open(path_);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->bytes().size(), 0);
  ASSERT_TRUE(WriteNpy(path_, {"x", "INT8", {}, "7"}).ok());
  absl::StatusOr<NpyFile> scalar = NpyFile::Open(path_);
  ASSERT_TRUE(scalar.ok()) << scalar.status();
  EXPECT_EQ(scalar->bytes(), "7");
}

TEST_F(NpyTest, MovedFileKeepsItsBytes) {
  ASSERT_TRUE(WriteNpy(path_, {"x", "INT8", {2}, "ab"}).ok());
  absl::StatusOr<NpyFile> file = NpyFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const NpyFile moved = *std::move(file);
  EXPECT_EQ(moved.bytes(), "ab");
}

TEST_F(NpyTest, Bfloat16IsWrittenAsFloat) {
  // 1.0 and -2.5, the upper halves of their floats.
  ASSERT_TRUE(WriteNpy(path_, {"x", "BF16", {2}, std::string("\x80\x3f\x20\xc0", 4)}).ok());
  absl::StatusOr<NpyFile> file = NpyFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().datatype, "FP32");
  EXPECT_EQ(file->ToTensor("x").data, client::MakeTensor<float>("x", {2}, {1, -2.5}).data);
}

TEST_F(NpyTest, SizeThatTheHeaderDoesNotSayIsRefused) {
  const std::string header = *FormatNpyHeader("FP32", {2, 2});
  for (size_t size : {0, 15, 17}) {
    Write(header + std::string(size, 'x'));
    const absl::Status status = NpyFile::Open(path_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path_));
    EXPECT_THAT(std::string(status.message()), HasSubstr("(FP32 [2, 2]) make 16"));
  }
}

TEST_F(NpyTest, ShapeBeyondMemoryIsRefused) {
  Write(*FormatNpyHeader("FP32", {int64_t{1} << 40, int64_t{1} << 40}));
  const absl::Status status = NpyFile::Open(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("too many elements"));
}

TEST_F(NpyTest, FilesThatAreNoArraysAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(NpyFile::Open(path_).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(NpyFile::Open(::testing::TempDir()).status()));
  Write("");
  EXPECT_TRUE(absl::IsInvalidArgument(NpyFile::Open(path_).status()));
  Write("1,2,3\n");
  EXPECT_THAT(std::string(NpyFile::Open(path_).status().message()), HasSubstr("not a .npy file"));
}

TEST_F(NpyTest, WhatCannotBeWrittenIsAnError) {
  EXPECT_TRUE(absl::IsInvalidArgument(WriteNpy(path_, {"x", "FP32", {2}, "1234"})));
  EXPECT_TRUE(absl::IsNotFound(WriteNpy(path_ + "/none/x.npy", {"x", "INT8", {1}, "1"})));
  const std::string large(1 << 20, 'x');
  EXPECT_TRUE(absl::IsResourceExhausted(WriteNpy("/dev/full", {"x", "INT8", {1 << 20}, large})));
}

}  // namespace
}  // namespace braid::cli

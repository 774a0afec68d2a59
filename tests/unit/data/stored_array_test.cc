#include "server/data/stored_array.h"

#include <zip.h>
#include <zlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/npy_header.h"
#include "server/storage/file_sink.h"
#include "server/storage/safetensors.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string BytesOfTensor(const HostTensor& tensor) {
  return {static_cast<const char*>(tensor.data), tensor.bytes};
}

std::string NpyOf(const HostTensor& tensor) {
  return FormatNpyHeader(tensor.type, tensor.shape).value() + BytesOfTensor(tensor);
}

// Images of 2 x 3 pixels.
const std::string kIdx =
    std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03", 16) + "abcdefghijkl";

class StoredArrayTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& name) const { return dir_.path() / name; }

  absl::StatusOr<std::vector<StoredArray>> Read(const std::string& name) const {
    BRAID_ASSIGN_OR_RETURN(const auto file, DataFile::Open(PathOf(name)));
    return ReadArrays(file, scratch_.path());
  }

  absl::StatusOr<HostTensor> Tensor(const StoredArray& array) const {
    std::shared_ptr<const MappedRange> range;
    return MapTensor(array, &range);
  }

  // Returns the first error of reading a file's header or its elements.
  absl::Status ReadAndMap(const std::string& name) const {
    BRAID_ASSIGN_OR_RETURN(const auto arrays, Read(name));
    return Tensor(arrays[0]).status();
  }

  void PutNpz(const std::string& name, const std::vector<HostTensor>& tensors,
              zip_int32_t method) const {
    int code = 0;
    zip_t* const archive = zip_open(PathOf(name).c_str(), ZIP_CREATE, &code);
    ASSERT_NE(archive, nullptr);
    std::vector<std::string> members;
    members.reserve(tensors.size());
    for (const HostTensor& tensor : tensors) {
      members.push_back(NpyOf(tensor));
      zip_source_t* const source =
          zip_source_buffer(archive, members.back().data(), members.back().size(), 0);
      const zip_int64_t index = zip_file_add(archive, (tensor.name + ".npy").c_str(), source, 0);
      ASSERT_GE(index, 0);
      ASSERT_EQ(zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), method, 0), 0);
    }
    ASSERT_EQ(zip_close(archive), 0);
  }

  void PutGzip(const std::string& name, const std::string& text) const {
    gzFile file = gzopen(PathOf(name).c_str(), "wb");
    ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }

  const TempDir dir_;
  const TempDir scratch_;
};

TEST_F(StoredArrayTest, MapsNpyFilesInPlace) {
  Put(PathOf("images.npy"), NpyOf(MakeHost<float>("", {2, 2}, {1, 2, 3, 4})));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto arrays, Read("images.npy"));
  ASSERT_EQ(arrays.size(), 1u);
  EXPECT_EQ(arrays[0].name, "images");
  EXPECT_EQ(arrays[0].type, DataType::kFp32);
  EXPECT_THAT(arrays[0].shape, ElementsAre(2, 2));
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor, Tensor(arrays[0]));
  EXPECT_THAT(ValuesOf<float>(tensor), ElementsAre(1, 2, 3, 4));
}

TEST_F(StoredArrayTest, ReadsNpzFilesWithAndWithoutCompression) {
  const std::vector<HostTensor> tensors = {MakeHost<float>("x", {3, 1}, {1, 2, 3}),
                                           MakeHost<int64_t>("y", {3}, {7, 8, 9})};
  PutNpz("stored.npz", tensors, ZIP_CM_STORE);
  PutNpz("deflated.npz", tensors, ZIP_CM_DEFLATE);
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto arrays, Read(name));
    ASSERT_EQ(arrays.size(), 2u);
    EXPECT_EQ(arrays[1].name, "y");
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor x, Tensor(arrays[0]));
    EXPECT_THAT(ValuesOf<float>(x), ElementsAre(1, 2, 3));
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor y, Tensor(arrays[1]));
    EXPECT_THAT(ValuesOf<int64_t>(y), ElementsAre(7, 8, 9));
  }
  EXPECT_THAT(Names(scratch_.path()), IsEmpty());
}

TEST_F(StoredArrayTest, DetectsADamagedMember) {
  PutNpz("x.npz", {MakeHost<int64_t>("y", {20'000}, std::vector<int64_t>(20'000, 7))},
         ZIP_CM_STORE);
  FlipByte(PathOf("x.npz"), 100'000);
  EXPECT_THAT(ReadAndMap("x.npz"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("x.npz")));
}

TEST_F(StoredArrayTest, ReadsSafetensors) {
  const std::vector<HostTensor> tensors = {MakeHost<int32_t>("b", {2}, {5, 6}),
                                           MakeHost<double>("a", {2, 1}, {0.5, 1.5})};
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create(PathOf("x.safetensors")));
  ASSERT_THAT(WriteSafetensors(&sink, tensors), IsOk());
  ASSERT_THAT(sink.Finish(), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto arrays, Read("x.safetensors"));
  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays[0].name, "a");
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor a, Tensor(arrays[0]));
  EXPECT_THAT(ValuesOf<double>(a), ElementsAre(0.5, 1.5));
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor b, Tensor(arrays[1]));
  EXPECT_THAT(ValuesOf<int32_t>(b), ElementsAre(5, 6));
}

TEST_F(StoredArrayTest, ReadsIdxFilesPlainAndCompressed) {
  Put(PathOf("images-idx3-ubyte"), kIdx);
  PutGzip("images-idx3-ubyte.gz", kIdx);
  for (const char* name : {"images-idx3-ubyte", "images-idx3-ubyte.gz"}) {
    EXPECT_TRUE(IsArrayFile(PathOf(name), Contents(PathOf(name)).substr(0, 8)));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto arrays, Read(name));
    EXPECT_EQ(arrays[0].name, "images-idx3-ubyte");
    EXPECT_EQ(arrays[0].type, DataType::kUint8);
    EXPECT_THAT(arrays[0].shape, ElementsAre(2, 2, 3));
    BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor, Tensor(arrays[0]));
    EXPECT_EQ(BytesOfTensor(tensor), "abcdefghijkl");
  }
}

TEST_F(StoredArrayTest, SwapsTheBytesOfIdxFiles) {
  Put(PathOf("x-idx1-int"), std::string("\0\0\x0C\x01\0\0\0\x02\0\0\0\x05\xFF\xFF\xFF\xFE", 16));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto arrays, Read("x-idx1-int"));
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor, Tensor(arrays[0]));
  EXPECT_THAT(ValuesOf<int32_t>(tensor), ElementsAre(5, -2));
}

TEST_F(StoredArrayTest, DetectsTruncatedFiles) {
  Put(PathOf("x.npy"), NpyOf(MakeHost<float>("", {2, 2}, {1, 2, 3, 4})));
  Truncate(PathOf("x.npy"));
  EXPECT_THAT(Read("x.npy"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("expected 16 bytes")));
  Put(PathOf("x-idx"), kIdx.substr(0, kIdx.size() - 1));
  EXPECT_THAT(Read("x-idx"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("x-idx")));
  PutGzip("short.gz", kIdx.substr(0, kIdx.size() - 1));
  PutGzip("cut.gz", kIdx);
  Truncate(PathOf("cut.gz"));
  for (const char* name : {"short.gz", "cut.gz"}) {
    EXPECT_THAT(ReadAndMap(name), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)));
  }
}

TEST_F(StoredArrayTest, ArraysNeedRows) {
  Put(PathOf("x.npy"), NpyOf(MakeHost<float>("", {}, {1})));
  EXPECT_THAT(Read("x.npy"), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("array 'x' has shape [] (expected rows")));
}

TEST_F(StoredArrayTest, NoticesThatAMappedFileShrinks) {
  Put(PathOf("x.npy"), NpyOf(MakeHost<float>("", {3000}, std::vector<float>(3000, 1))));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto arrays, Read("x.npy"));
  std::shared_ptr<const MappedRange> range;
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor tensor, MapTensor(arrays[0], &range));
  EXPECT_THAT(range->Check(), IsOk());
  std::filesystem::resize_file(PathOf("x.npy"), 4096);
  EXPECT_EQ(ValuesOf<float>(tensor).back(), 0);
  EXPECT_THAT(range->Check(), StatusIs(absl::StatusCode::kAborted, HasSubstr("changed")));
}

}  // namespace
}  // namespace braid

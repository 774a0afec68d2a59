#include "server/storage/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/file_sink.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/silent_pipe.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TextSink final : public ByteSink {
 public:
  absl::Status Write(absl::string_view bytes) override {
    absl::StrAppend(&text, bytes);
    return absl::OkStatus();
  }

  std::string text;
};

class SafetensorsTest : public ::testing::Test {
 protected:
  // Writes a file with the unchanged `header` and its length.
  void PutFile(const std::string& header, const std::string& data) const {
    std::string length(8, '\0');
    for (size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<char>(header.size() >> (8 * i));
    }
    Put(path_, length + header + data);
  }

  const TempDir dir_;
  const std::string path_ = dir_.path() / "model.safetensors";
};

const std::vector<HostTensor> kTensors = {
    MakeHost<int32_t>("ids", {3}, {1, -2, 3}),
    MakeHost<double>("scale", {}, {0.5}),
    MakeHost<float>("weight", {2, 2}, {1, 2, 3, 4}),
    MakeHost<double>("none", {0, 7}, {}),
    {"mask", DataType::kBool, {3}, "\1\0\1", 3, nullptr},
};

TEST_F(SafetensorsTest, RoundTrips) {
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create(path_));
  ASSERT_THAT(WriteSafetensors(&sink, kTensors, {{"format", "pt"}}), IsOk());
  ASSERT_THAT(sink.Finish(), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path_));
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<HostTensor> tensors, ReadSafetensors(path_));
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_EQ(tensors[0].name, "scale");
  EXPECT_THAT(tensors[0].shape, IsEmpty());
  EXPECT_THAT(ValuesOf<double>(tensors[0]), ElementsAre(0.5));
  EXPECT_EQ(tensors[1].name, "none");
  EXPECT_THAT(tensors[1].shape, ElementsAre(0, 7));
  EXPECT_EQ(tensors[2].name, "ids");
  EXPECT_EQ(tensors[2].type, DataType::kInt32);
  EXPECT_THAT(ValuesOf<int32_t>(tensors[2]), ElementsAre(1, -2, 3));
  EXPECT_EQ(tensors[3].name, "weight");
  EXPECT_THAT(tensors[3].shape, ElementsAre(2, 2));
  EXPECT_THAT(ValuesOf<float>(tensors[3]), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(tensors[4].name, "mask");
  EXPECT_THAT(ValuesOf<uint8_t>(tensors[4]), ElementsAre(1, 0, 1));
}

TEST_F(SafetensorsTest, PadsTheHeaderAndAlignsTensors) {
  TextSink sink;
  ASSERT_THAT(WriteSafetensors(&sink, kTensors), IsOk());
  const auto length =
      static_cast<unsigned char>(sink.text[0]) + 256 * static_cast<unsigned char>(sink.text[1]);
  EXPECT_EQ(length % 8, 0);
  EXPECT_EQ(sink.text.size(), 8 + length + 8 + 12 + 16 + 3);
  Put(path_, sink.text);
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<HostTensor> tensors, ReadSafetensors(path_));
  for (const HostTensor& tensor : tensors) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % DataTypeSize(tensor.type), 0u);
  }
}

TEST_F(SafetensorsTest, ReturnsTheNumberOfBytes) {
  TextSink sink;
  ASSERT_THAT(WriteSafetensors(&sink, kTensors, {{"a", "b"}}), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const int64_t bytes, SafetensorsBytes(kTensors, {{"a", "b"}}));
  EXPECT_EQ(bytes, sink.text.size());
  BRAID_ASSERT_OK_AND_ASSIGN(const int64_t none, SafetensorsBytes({}));
  EXPECT_EQ(none, 16);
}

TEST_F(SafetensorsTest, WritesNothingForInvalidTensors) {
  TextSink sink;
  HostTensor tensor = kTensors[0];
  tensor.shape = {4};
  EXPECT_THAT(WriteSafetensors(&sink, {tensor}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("12 bytes for INT32 [4]")));
  EXPECT_THAT(WriteSafetensors(&sink, {kTensors[0], kTensors[0]}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'ids'")));
  EXPECT_EQ(sink.text, "");
}

TEST_F(SafetensorsTest, ReportsAFullDisk) {
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create("/dev/full"));
  EXPECT_THAT(WriteSafetensors(&sink, {MakeRows("x", 1 << 20, 0)}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("/dev/full")));
}

TEST_F(SafetensorsTest, AlignsTensorsInMemory) {
  PutFile(R"({"b":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},)"
          R"("i":{"dtype":"I32","shape":[1],"data_offsets":[1,5]}})",
          std::string("\1\7\0\0\0", 5));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<HostTensor> tensors, ReadSafetensors(path_));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors[1].data) % 4, 0u);
  EXPECT_THAT(ValuesOf<int32_t>(tensors[1]), ElementsAre(7));
}

TEST_F(SafetensorsTest, DetectsEveryTruncation) {
  TextSink sink;
  ASSERT_THAT(WriteSafetensors(&sink, kTensors), IsOk());
  for (size_t size = 0; size < sink.text.size(); ++size) {
    Put(path_, sink.text.substr(0, size));
    EXPECT_THAT(ReadSafetensors(path_),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors': ")))
        << "at " << size;
  }
}

TEST_F(SafetensorsTest, DetectsAFileThatBecomesShorter) {
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create(path_));
  ASSERT_THAT(WriteSafetensors(&sink, {MakeRows("x", 2, 0)}), IsOk());
  ASSERT_THAT(sink.Finish(), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path_));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  std::vector<char> to(file.entries().front().end);
  EXPECT_THAT(
      file.Read(file.entries().front(), to.data()),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors': ends at byte ")));
}

TEST_F(SafetensorsTest, RejectsHeadersLargerThanTheFile) {
  Put(path_, std::string("\x09\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_THAT(ReadSafetensors(path_),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("model.safetensors': header of 9 bytes (expected at most 8)")));
  Put(path_, std::string(8, '\xFF') + "{}");
  EXPECT_THAT(ReadSafetensors(path_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("header of 18446744073709551615")));
  // A sparse file that is large enough.
  Put(path_, std::string("\0\0\0\x08\0\0\0\0{}", 10));
  std::filesystem::resize_file(path_, 200'000'000);
  EXPECT_THAT(ReadSafetensors(path_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("expected at most 100000000")));
}

TEST_F(SafetensorsTest, NamesTheFileOfAnInvalidHeader) {
  PutFile(R"({"w":{"dtype":"C64","shape":[],"data_offsets":[0,8]}})", "12345678");
  EXPECT_THAT(ReadSafetensors(path_),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("model.safetensors': 'w': "), HasSubstr("'C64'"))));
}

TEST_F(SafetensorsTest, ReportsAMissingFile) {
  EXPECT_THAT(ReadSafetensors(path_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model.safetensors'")));
}

TEST_F(SafetensorsTest, DoesNotBlockOnAPipe) {
  SilentPipe pipe(path_);
  EXPECT_THAT(SafetensorsFile::Open(path_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not a regular file")));
  EXPECT_FALSE(pipe.WasWaitedFor());
}

}  // namespace
}  // namespace braid

#include "server/decode/image/image_decoder.h"

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ATen/Parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decode/decoder.h"
#include "tests/fakes/image_files.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Decoder> Make(std::vector<ImageTransform> transforms, int64_t channels = 3) {
  ImageSpec spec;
  spec.channels = channels;
  spec.transforms = std::move(transforms);
  auto decoder = MakeDecoder(spec, {}, "decode");
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  return *decoder;
}

template <typename T>
std::vector<T> Values(const HostTensor& tensor) {
  const auto* const values = static_cast<const T*>(tensor.data);
  const size_t count = tensor.bytes / sizeof(T);
  return {values, values + count};
}

// Decodes one file as row `row`.
template <typename T>
std::vector<T> Decoded(const Decoder& decoder, const std::string& file,
                       const DecodeOptions& options = {}, int64_t row = 0) {
  const auto tensors = decoder.Decode({{file, row}}, options);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  return Values<T>(tensors->front());
}

TEST(ImageDecoderTest, MakesChannelsRowsAndColumns) {
  const auto decoder = Make({CenterCrop{2, 3}});
  ASSERT_EQ(decoder->outputs().size(), 1);
  EXPECT_EQ(decoder->outputs()[0].input, "");
  EXPECT_EQ(decoder->outputs()[0].row, (RowType{DataType::kUint8, {3, 2, 3}}));
  const std::string file = PngFile();
  const auto tensors = decoder->Decode({{file, 0}, {file, 1}}, {});
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 1);
  const HostTensor& tensor = tensors->front();
  EXPECT_EQ(tensor.type, DataType::kUint8);
  EXPECT_THAT(tensor.shape, ElementsAre(2, 3, 2, 3));
  const std::vector<uint8_t> row = {255, 0,   0,   10, 200, 255,  //
                                    0,   255, 0,   20, 100, 255,  //
                                    0,   0,   255, 30, 50,  255};
  std::vector<uint8_t> both = row;
  both.insert(both.end(), row.begin(), row.end());
  EXPECT_EQ(Values<uint8_t>(tensor), both);
}

TEST(ImageDecoderTest, NormalizesFloats) {
  const auto decoder = Make({CenterCrop{1, 1}, ToFloat{}, Normalize{{0.5}, {0.25}}}, 1);
  EXPECT_EQ(decoder->outputs()[0].row, (RowType{DataType::kFp32, {1, 1, 1}}));
  const std::vector<float> values = Decoded<float>(*decoder, PngFile());
  // The crop begins at row round(0.5) = 0 and column 1.
  EXPECT_THAT(values, ElementsAre((149 * static_cast<float>(1.0 / 255) - 0.5F) / 0.25F));
}

TEST(ImageDecoderTest, PadsCropsWithZeros) {
  EXPECT_THAT(Decoded<uint8_t>(*Make({CenterCrop{4, 5}}, 1), PngFile()),
              ElementsAre(0, 0, 0, 0, 0,       //
                          0, 76, 149, 29, 0,   //
                          0, 18, 124, 255, 0,  //
                          0, 0, 0, 0, 0));
  EXPECT_THAT(Decoded<uint8_t>(*Make({CenterCrop{3, 1}}, 1), PngFile()), ElementsAre(149, 124, 0));
}

TEST(ImageDecoderTest, FlipsBothWays) {
  EXPECT_THAT(
      Decoded<uint8_t>(*Make({RandomHorizontalFlip{1}, RandomVerticalFlip{1}, CenterCrop{2, 3}}, 1),
                       PngFile()),
      ElementsAre(255, 124, 18, 29, 149, 76));
  EXPECT_THAT(Decoded<uint8_t>(*Make({RandomHorizontalFlip{0}, CenterCrop{2, 3}}, 1), PngFile()),
              ElementsAre(76, 149, 29, 18, 124, 255));
}

TEST(ImageDecoderTest, ResizesTheShorterSide) {
  EXPECT_EQ(Make({Resize{{6, 9}}})->outputs()[0].row.shape, (std::vector<int64_t>{3, 6, 9}));
  EXPECT_EQ(Make({CenterCrop{20, 30}, Resize{{7}}})->outputs()[0].row.shape,
            (std::vector<int64_t>{3, 7, 10}));
  EXPECT_THAT(Decoded<uint8_t>(*Make({Resize{{4}, Interpolation::kNearest}, CenterCrop{4, 6}}, 1),
                               PngFile()),
              ElementsAre(76, 76, 149, 149, 29, 29, 76, 76, 149, 149, 29, 29,  //
                          18, 18, 124, 124, 255, 255, 18, 18, 124, 124, 255, 255));
}

TEST(ImageDecoderTest, NamesUnreadableRows) {
  const auto decoder = Make({CenterCrop{2, 3}}, 1);
  const std::string good = PngFile();
  const std::vector<EncodedRow> rows = {{"?", 10}, {good, 11}, {"", 12}, {good, 13}};
  EXPECT_THAT(decoder->Decode(rows, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 10: starts with \"?\"")));
  std::vector<UnreadableRow> unreadable;
  const auto tensors = decoder->Decode(rows, {}, &unreadable);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_THAT(tensors->front().shape, ElementsAre(2, 1, 2, 3));
  EXPECT_THAT(Values<uint8_t>(tensors->front()),
              ElementsAre(76, 149, 29, 18, 124, 255, 76, 149, 29, 18, 124, 255));
  ASSERT_EQ(unreadable.size(), 2);
  EXPECT_EQ(unreadable[0].index, 0);
  EXPECT_EQ(unreadable[1].index, 2);
  EXPECT_THAT(unreadable[1].status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 12: is empty")));
}

TEST(ImageDecoderTest, ReturnsNoRowsOfNone) {
  const auto decoder = Make({CenterCrop{2, 3}});
  std::vector<UnreadableRow> unreadable;
  for (const std::vector<EncodedRow>& rows : {std::vector<EncodedRow>(), {{"?", 0}}}) {
    const auto tensors = decoder->Decode(rows, {}, &unreadable);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_THAT(tensors->front().shape, ElementsAre(0, 3, 2, 3));
    EXPECT_EQ(tensors->front().bytes, 0);
  }
}

TEST(ImageDecoderTest, RejectsImagesThatATransformDoesNotFit) {
  const std::string file = PngFile();
  EXPECT_THAT(Make({RandomCrop{4, 4, 0}})->Decode({{file, 3}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "row 3: random_crop: image of 2 x 3 pixels and padding of 0 (expected at "
                       "least 4 x 4 pixels)"));
  EXPECT_THAT(
      Make({Resize{{10'000}}, CenterCrop{1, 1}})->Decode({{file, 3}}, {}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("resize: would make an image of 10000 x 15000, which has 150000000")));
  EXPECT_THAT(Make({ToFloat{}, Resize{{7'000}}, CenterCrop{1, 1}})->Decode({{file, 3}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("resize: at 7000 x 10500 pixels, the resized images of this row "
                                 "take 882000000 bytes in total (expected at most 268435456)")));
}

TEST(ImageDecoderTest, DrawsNumbersFromSeedEpochAndRow) {
  const auto decoder = Make({RandomResizedCrop{8, 8}, RandomHorizontalFlip{}});
  const std::string file = ProgressiveJpegFile();
  const std::vector<uint8_t> expected = Decoded<uint8_t>(*decoder, file, {1, 2}, 3);
  EXPECT_EQ(Decoded<uint8_t>(*decoder, file, {1, 2}, 3), expected);
  EXPECT_NE(Decoded<uint8_t>(*decoder, file, {2, 2}, 3), expected);
  EXPECT_NE(Decoded<uint8_t>(*decoder, file, {1, 3}, 3), expected);
  EXPECT_NE(Decoded<uint8_t>(*decoder, file, {1, 2}, 4), expected);
}

TEST(ImageDecoderTest, CropsAWindowThatNeedsNoResizing) {
  const auto decoder = Make({RandomResizedCrop{1, 1, 1.0 / 6, 1.0 / 6, 1, 1}}, 1);
  std::set<uint8_t> pixels;
  for (int64_t epoch = 0; epoch < 100; ++epoch) {
    const auto values = Decoded<uint8_t>(*decoder, PngFile(), {.seed = 1, .epoch = epoch});
    ASSERT_EQ(values.size(), 1);
    pixels.insert(values[0]);
  }
  EXPECT_THAT(pixels, ElementsAre(18, 29, 76, 124, 149, 255));
}

TEST(ImageDecoderTest, DecodesOnManyThreads) {
  const auto decoder =
      Make({Resize{{30}}, RandomCrop{20, 20, 2}, ToFloat{}, Normalize{{0.4}, {0.2}}});
  const std::vector<std::string> files = {ProgressiveJpegFile(), InterlacedPngFile(),
                                          LossyWebpFile()};
  std::vector<EncodedRow> rows;
  for (int64_t row = 0; row < 12; ++row) {
    rows.push_back({files[static_cast<size_t>(row) % files.size()], row});
  }
  const auto expected = decoder->Decode(rows, {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> decoded(4);
  for (std::vector<float>& values : decoded) {
    threads.emplace_back([&] { values = Values<float>(decoder->Decode(rows, {})->front()); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::vector<float>& values : decoded) {
    EXPECT_EQ(values, Values<float>(expected->front()));
  }
}

int64_t ThreadsOfProcess() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

TEST(ImageDecoderTest, ResizesOnTheCallingThread) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const int64_t threads = ThreadsOfProcess();
  Decoded<float>(*Make({ToFloat{}, Resize{{1000, 1000}}}), PngFile());
  Decoded<uint8_t>(*Make({Resize{{1000, 1000}, Interpolation::kNearest}}), PngFile());
  EXPECT_EQ(ThreadsOfProcess(), threads);
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace braid

#include "server/decode/image/image_codec.h"

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/image_files.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<int> Decoded(const std::string& file, int64_t channels) {
  Pixels pixels;
  const absl::Status status =
      DecodeImage(file, {.channels = channels, .max_pixels = 1'000'000}, pixels);
  EXPECT_TRUE(status.ok()) << status;
  return {pixels.data(), pixels.data() + pixels.bytes()};
}

absl::Status StatusOfDecoding(const std::string& file, int64_t max_pixels = 1'000'000) {
  Pixels pixels;
  return DecodeImage(file, {.channels = 3, .max_pixels = max_pixels}, pixels);
}

int64_t Sum(const std::vector<int>& values) {
  int64_t sum = 0;
  for (const int value : values) {
    sum += value;
  }
  return sum;
}

// The values are torchvision's; tests/e2e/test_decoded_images.py compares many more files.
TEST(ImageCodecTest, DecodesJpeg) {
  EXPECT_THAT(Decoded(JpegFile(), 3), ElementsAre(254, 1, 3, 0, 255, 0, 2, 3, 254,  //
                                                  12, 19, 29, 204, 97, 45, 255, 255, 250));
  EXPECT_THAT(Decoded(JpegFile(), 1), ElementsAre(77, 148, 31, 18, 123, 255));
}

TEST(ImageCodecTest, DecodesCmyk) {
  EXPECT_THAT(Decoded(CmykJpegFile(), 3), ElementsAre(255, 1, 0, 0, 254, 3, 3, 0, 253,  //
                                                      12, 19, 29, 197, 101, 47, 253, 255, 255));
  EXPECT_THAT(Decoded(CmykJpegFile(), 1), ElementsAre(77, 149, 30, 18, 124, 254));
}

TEST(ImageCodecTest, DecodesProgressiveJpeg) {
  EXPECT_EQ(Sum(Decoded(ProgressiveJpegFile(), 3)), 194'480);
  EXPECT_EQ(Sum(Decoded(ProgressiveJpegFile(), 1)), 64'773);
}

TEST(ImageCodecTest, DecodesPng) {
  for (const std::string& file : {PngFile(), PalettePngFile()}) {
    EXPECT_THAT(Decoded(file, 3), ElementsAre(255, 0, 0, 0, 255, 0, 0, 0, 255,  //
                                              10, 20, 30, 200, 100, 50, 255, 255, 255));
    EXPECT_THAT(Decoded(file, 1), ElementsAre(76, 149, 29, 18, 124, 255));
  }
}

TEST(ImageCodecTest, TakesTheHighBytesOfDeepPng) {
  // Each sample of the file is a byte times 257.
  EXPECT_EQ(Sum(Decoded(InterlacedPngFile(), 3)), 50'059'488 / 257);
}

TEST(ImageCodecTest, DecodesWebp) {
  EXPECT_EQ(Sum(Decoded(LossyWebpFile(), 3)), 192'675);
  EXPECT_THAT(Decoded(LosslessWebpFile(), 3), ElementsAre(255, 0, 0, 0, 255, 0, 0, 0, 255,  //
                                                          10, 20, 30, 200, 100, 50, 255, 255, 255));
  EXPECT_THAT(Decoded(LosslessWebpFile(), 1), ElementsAre(76, 150, 29, 18, 124, 255));
}

TEST(ImageCodecTest, RejectsOtherFiles) {
  EXPECT_THAT(StatusOfDecoding(""), StatusIs(kInvalid, HasSubstr("is empty")));
  EXPECT_THAT(StatusOfDecoding("RIFF"), StatusIs(kInvalid, HasSubstr("starts with \"RIFF\"")));
  EXPECT_THAT(
      StatusOfDecoding(std::string("GIF89a\0\n", 8)),
      StatusIs(kInvalid, "starts with \"GIF89a\\x00\\n\" (expected a JPEG, PNG or WebP file)"));
  EXPECT_THAT(StatusOfDecoding(AnimatedWebpFile()),
              StatusIs(kInvalid, "WebP file is an animation (expected a single image)"));
}

TEST(ImageCodecTest, SuspectsAPathInPrintableBytes) {
  EXPECT_THAT(StatusOfDecoding("cat/1.jpg"),
              StatusIs(kInvalid,
                       "starts with \"cat/1.jp\" (a path? expected the content of a JPEG, PNG or "
                       "WebP file)"));
}

TEST(ImageCodecTest, SaysWhatIsWrongWithAFile) {
  const std::pair<const char*, std::string> files[] = {
      {"JPEG", JpegFile()}, {"PNG", PngFile()}, {"WebP", LosslessWebpFile()}};
  for (const auto& [format, file] : files) {
    EXPECT_THAT(StatusOfDecoding(file.substr(0, file.size() - 20)),
                StatusIs(kInvalid, absl::StrCat(format, " file is truncated")));
  }
  std::string jpeg = JpegFile();
  jpeg.replace(jpeg.find("\xFF\xC4") + 4, 1, "\x7F");
  EXPECT_THAT(StatusOfDecoding(jpeg),
              StatusIs(kInvalid, "JPEG file cannot be decoded: Bogus DHT index 111"));
  std::string png = PngFile();
  png[png.find("IHDR") + 4] ^= 1;
  EXPECT_THAT(StatusOfDecoding(png),
              StatusIs(kInvalid, "PNG file cannot be decoded: IHDR: CRC error"));
}

TEST(ImageCodecTest, RejectsLargeImagesBeforeDecodingThem) {
  std::string jpeg = JpegFile();
  const size_t frame = jpeg.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xFF\xDC\xFF\xDB");
  EXPECT_THAT(StatusOfDecoding(jpeg),
              StatusIs(kInvalid, HasSubstr("65500 x 65499 has 4290184500 pixels (expected at most "
                                           "max_pixels, 1000000)")));
  for (const std::string& file : {JpegFile(), PngFile(), LosslessWebpFile()}) {
    EXPECT_TRUE(StatusOfDecoding(file, 6).ok());
    EXPECT_THAT(
        StatusOfDecoding(file, 5),
        StatusIs(kInvalid, HasSubstr("2 x 3 has 6 pixels (expected at most max_pixels, 5)")));
  }
}

TEST(ImageCodecTest, RejectsLongSides) {
  EXPECT_THAT(
      StatusOfDecoding(LongPngFile()),
      StatusIs(kInvalid, HasSubstr("image of 65536 x 1 pixels (expected at most 65535 x 65535)")));
}

TEST(ImageCodecTest, RejectsJpegOfTooManyScans) {
  std::string file = ProgressiveJpegFile();
  const size_t last = file.rfind("\xFF\xDA");
  const std::string scan = file.substr(last, file.size() - last - 2);  // without the end marker
  std::string more = file;
  for (int i = 0; i < 90; ++i) {
    more.insert(last, scan);
  }
  EXPECT_TRUE(StatusOfDecoding(more).ok());
  for (int i = 0; i < 10; ++i) {
    more.insert(last, scan);
  }
  EXPECT_THAT(StatusOfDecoding(more), StatusIs(kInvalid, "JPEG file has too many scans"));
}

std::vector<std::pair<const char*, std::string>> AllFiles() {
  return {{"jpeg", JpegFile()},
          {"cmyk", CmykJpegFile()},
          {"progressive", ProgressiveJpegFile()},
          {"png", PngFile()},
          {"interlaced", InterlacedPngFile()},
          {"palette", PalettePngFile()},
          {"lossy", LossyWebpFile()},
          {"lossless", LosslessWebpFile()},
          {"animated", AnimatedWebpFile()}};
}

TEST(ImageCodecTest, RejectsTruncatedFiles) {
  for (const auto& [name, file] : AllFiles()) {
    // The pixels of PNG and WebP files may be complete without the last bytes.
    const bool jpeg = name == std::string("jpeg") || name == std::string("progressive");
    for (size_t size = 0; size < file.size(); ++size) {
      // A copy of its own, so that the address sanitizer notices reads past its end.
      const absl::Status status = StatusOfDecoding(std::string(file.data(), size));
      EXPECT_TRUE(absl::IsInvalidArgument(status) ||
                  (status.ok() && !jpeg && size + 16 > file.size()))
          << name << ", " << size << " of " << file.size() << " bytes: " << status;
    }
  }
}

TEST(ImageCodecTest, SurvivesDamagedFiles) {
  std::mt19937 random(1);
  for (const auto& [name, file] : AllFiles()) {
    for (int round = 0; round < 400; ++round) {
      std::string damaged = file;
      for (size_t flips = 1 + random() % 4; flips > 0; --flips) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      const absl::Status status = StatusOfDecoding(damaged, 100'000);
      EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << name << ": " << status;
    }
  }
}

TEST(ImageCodecTest, ReusesPixelsOfOtherSizes) {
  Pixels pixels;
  const ImageCodecOptions options = {.channels = 3, .max_pixels = 1000};
  ASSERT_TRUE(DecodeImage(ProgressiveJpegFile(), options, pixels).ok());
  const uint8_t* const memory = pixels.data();
  ASSERT_TRUE(DecodeImage(PngFile(), options, pixels).ok());
  EXPECT_EQ(pixels.data(), memory);
  EXPECT_EQ(pixels.bytes(), 18);
}

}  // namespace
}  // namespace braid

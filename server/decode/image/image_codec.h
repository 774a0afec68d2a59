// JPEG, PNG and WebP files in memory, decoded to pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

// UINT8 pixels in the order of rows, columns and channels. The memory is reused by the next image.
class Pixels {
 public:
  // Sets the size; the values are undefined.
  void Reset(int64_t height, int64_t width, int64_t channels);

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int64_t channels() const { return channels_; }
  size_t row_bytes() const { return static_cast<size_t>(width_ * channels_); }
  size_t bytes() const { return static_cast<size_t>(height_) * row_bytes(); }
  uint8_t* data() { return data_.get(); }
  uint8_t* row(int64_t y) { return data_.get() + static_cast<size_t>(y) * row_bytes(); }

 private:
  int64_t height_ = 0;
  int64_t width_ = 0;
  int64_t channels_ = 0;
  size_t capacity_ = 0;
  std::unique_ptr<uint8_t[]> data_;
};

struct ImageCodecOptions {
  int64_t channels = 3;  // 1: gray, 3: RGB
  int64_t max_pixels = 0;
};

// Decodes a file. Detects its format from its first bytes. The pixels are those of
// torchvision.io.decode_image() in the mode RGB or GRAY, except that
//  - 16-bit PNG files give the high byte, as to_dtype(uint8, scale=True) does,
//  - a WebP file gives gray pixels, by the weights of ITU-R 601-2, if one channel is asked for.
// Alpha channels are dropped and EXIF orientations are ignored. INVALID_ARGUMENT for a file that is
// damaged, truncated, animated or of another format, or an image of more than max_pixels, or with a
// side of more than kMaxImageSide pixels, which is not decoded. After an error, the pixels are
// undefined.
absl::Status DecodeImage(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels);

// Decoders of one format, with the contract of DecodeImage().
absl::Status DecodeJpeg(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels);
absl::Status DecodePng(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels);
absl::Status DecodeWebp(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels);

// Returns an error for an image that is empty or larger than max_pixels or kMaxImageSide.
absl::Status CheckImageSize(int64_t height, int64_t width, const ImageCodecOptions& options);

// Returns the luma of ITU-R 601-2 in fixed point, as Pillow and torchvision compute it.
inline uint8_t GrayOfRgb(int red, int green, int blue) {
  return static_cast<uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

}  // namespace braid

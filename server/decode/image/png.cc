#include <png.h>

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/decode/image/image_codec.h"

namespace braid {
namespace {

// Decompressor of libpng, which reports errors with longjmp(). The methods that call libpng have no
// objects with destructors, and return false after an error.
class PngReader {
 public:
  explicit PngReader(absl::string_view file) : file_(file) {}
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Reads up to the pixels.
  bool ReadHeader() {
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, png_const_charp message) {
          auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
          // Not png_, which may not be set yet.
          reader.Fail(png, "cannot be decoded: ", message);
        },
        [](png_structp /*png*/, png_const_charp /*warning*/) {});
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    if (info_ == nullptr) {
      std::snprintf(message_, sizeof(message_), "cannot be decoded: no memory");
      return false;
    }
    if (setjmp(png_jmpbuf(png_)) != 0) {
      return false;
    }
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_chunk_cache_max(png_, 1);  // Skips texts, which may be compressed a thousandfold.
    png_set_read_fn(png_, this, [](png_structp png, png_bytep data, png_size_t bytes) {
      auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
      if (reader.file_.size() < bytes) {
        reader.Fail(png, "is truncated");
      }
      std::memcpy(data, reader.file_.data(), bytes);
      reader.file_.remove_prefix(bytes);
    });
    png_read_info(png_, info_);
    return true;
  }

  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }

  // Requires a ReadHeader() without error, and pixels of its size.
  bool ReadPixels(Pixels& pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) {
      return false;
    }
    Convert(pixels.channels() == 1);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != pixels.row_bytes()) {
      Fail(png_, "has rows of an unexpected size");
    }
    for (; passes_ > 0; --passes_) {
      for (y_ = 0; y_ < pixels.height(); ++y_) {
        png_read_row(png_, pixels.row(y_), nullptr);
      }
    }
    return true;
  }

  absl::Status Error() const {
    return absl::InvalidArgumentError(absl::StrCat("PNG file ", message_));
  }

 private:
  // Ends reading with the error "PNG file <what><reason>".
  [[noreturn]] void Fail(png_structp png, const char* what, const char* reason = "") {
    std::snprintf(message_, sizeof(message_), "%s%s", what, reason);
    png_longjmp(png, 1);
  }

  // Requests 8-bit gray or RGB pixels.
  void Convert(bool gray) {
    const png_byte type = png_get_color_type(png_, info_);
    png_set_strip_16(png_);
    if (type == PNG_COLOR_TYPE_PALETTE) {
      png_set_palette_to_rgb(png_);
    } else if (type == PNG_COLOR_TYPE_GRAY) {
      png_set_expand_gray_1_2_4_to_8(png_);
    }
    // A palette may have alpha values.
    if (type == PNG_COLOR_TYPE_PALETTE || (type & PNG_COLOR_MASK_ALPHA) != 0) {
      png_set_strip_alpha(png_);
    }
    const bool has_color = (type & PNG_COLOR_MASK_COLOR) != 0;
    if (gray && has_color) {
      png_set_rgb_to_gray(png_, PNG_ERROR_ACTION_NONE, 0.2989, 0.587);
    } else if (!gray && !has_color) {
      png_set_gray_to_rgb(png_);
    }
  }

  absl::string_view file_;  // what is left to read
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char message_[256] = {};
  int passes_ = 0;
  int64_t y_ = 0;
};

}  // namespace

absl::Status DecodePng(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels) {
  PngReader reader(file);
  if (!reader.ReadHeader()) {
    return reader.Error();
  }
  BRAID_RETURN_IF_ERROR(CheckImageSize(reader.height(), reader.width(), options));
  pixels.Reset(reader.height(), reader.width(), options.channels);
  if (!reader.ReadPixels(pixels)) {
    return reader.Error();
  }
  return absl::OkStatus();
}

}  // namespace braid

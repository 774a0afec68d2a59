#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
// After <cstdio>, which it needs.
#include <jpeglib.h>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/decode/image/image_codec.h"

namespace braid {
namespace {

// Scans of a progressive file. Each costs time for the whole image, however short it is.
constexpr int kMaxScans = 100;

// Decompressor of libjpeg, which reports errors with longjmp(). The methods that call libjpeg have
// no objects with destructors, and return false after an error.
class JpegReader {
 public:
  explicit JpegReader(absl::string_view file) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = [](j_common_ptr info) {
      char reason[JMSG_LENGTH_MAX];
      info->err->format_message(info, reason);
      Of(info).Fail("cannot be decoded: ", reason);
    };
    // Warnings, about data that decoders repair, would go to stderr.
    errors_.emit_message = [](j_common_ptr /*info*/, int /*level*/) {};
    progress_.progress_monitor = [](j_common_ptr info) {
      if (Of(info).info_.input_scan_number > kMaxScans) {
        Of(info).Fail("has too many scans");
      }
    };
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
    source_.bytes_in_buffer = file.size();
    source_.init_source = [](j_decompress_ptr /*info*/) {};
    source_.fill_input_buffer = [](j_decompress_ptr info) -> boolean {
      Of(info).Fail("is truncated");
    };
    // NOLINTNEXTLINE(google-runtime-int): libjpeg's
    source_.skip_input_data = [](j_decompress_ptr info, long bytes) {
      if (bytes <= 0) {
        return;
      }
      jpeg_source_mgr& source = *info->src;
      if (static_cast<size_t>(bytes) > source.bytes_in_buffer) {
        Of(info).Fail("is truncated");
      }
      source.next_input_byte += bytes;
      source.bytes_in_buffer -= static_cast<size_t>(bytes);
    };
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = [](j_decompress_ptr /*info*/) {};
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Reads up to the first scan, and determines the size.
  bool ReadHeader(bool gray) {
    if (setjmp(jump_) != 0) {
      return false;
    }
    jpeg_create_decompress(&info_);
    info_.src = &source_;
    info_.progress = &progress_;
    jpeg_read_header(&info_, TRUE);
    cmyk_ = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = cmyk_ ? JCS_CMYK : gray ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_calc_output_dimensions(&info_);
    return true;
  }

  int64_t height() const { return info_.output_height; }
  int64_t width() const { return info_.output_width; }

  // Requires a ReadHeader() without error, and pixels of its size.
  bool ReadPixels(Pixels& pixels) {
    if (setjmp(jump_) != 0) {
      return false;
    }
    jpeg_start_decompress(&info_);
    if (cmyk_) {
      cmyk_row_ = *info_.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&info_), JPOOL_IMAGE,
                                           info_.output_width * 4, 1);
    }
    while (info_.output_scanline < info_.output_height) {
      row_ = pixels.row(info_.output_scanline);
      jpeg_read_scanlines(&info_, cmyk_ ? &cmyk_row_ : &row_, 1);
      if (cmyk_) {
        ConvertCmyk(pixels.channels() == 1);
      }
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  absl::Status Error() const {
    return absl::InvalidArgumentError(absl::StrCat("JPEG file ", message_));
  }

 private:
  static JpegReader& Of(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }
  static JpegReader& Of(j_decompress_ptr info) {
    return *static_cast<JpegReader*>(info->client_data);
  }

  // Ends reading with the error "JPEG file <what><reason>".
  [[noreturn]] void Fail(const char* what, const char* reason = "") {
    std::snprintf(message_, sizeof(message_), "%s%s", what, reason);
    std::longjmp(jump_, 1);
  }

  // Converts cmyk_row_, whose values are inverted as in Adobe's files, to row_.
  void ConvertCmyk(bool gray) {
    const auto product = [](int a, int b) {
      const int rounded = a * b + 128;
      return ((rounded >> 8) + rounded) >> 8;
    };
    for (int64_t x = 0; x < width(); ++x) {
      const uint8_t* const cmyk = cmyk_row_ + 4 * x;
      const int key = cmyk[3];
      const auto color = [&](int ink) { return std::clamp(key - product(key, 255 - ink), 0, 255); };
      const int red = color(cmyk[0]);
      const int green = color(cmyk[1]);
      const int blue = color(cmyk[2]);
      if (gray) {
        row_[x] = GrayOfRgb(red, green, blue);
      } else {
        row_[3 * x] = static_cast<uint8_t>(red);
        row_[3 * x + 1] = static_cast<uint8_t>(green);
        row_[3 * x + 2] = static_cast<uint8_t>(blue);
      }
    }
  }

  jpeg_decompress_struct info_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  jpeg_source_mgr source_ = {};
  std::jmp_buf jump_ = {};
  char message_[JMSG_LENGTH_MAX + 32] = {};
  bool cmyk_ = false;
  JSAMPROW cmyk_row_ = nullptr;
  JSAMPROW row_ = nullptr;
};

}  // namespace

absl::Status DecodeJpeg(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels) {
  JpegReader reader(file);
  if (!reader.ReadHeader(options.channels == 1)) {
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

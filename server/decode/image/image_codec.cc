#include "server/decode/image/image_codec.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/decode/decode_spec.h"

namespace braid {

void Pixels::Reset(int64_t height, int64_t width, int64_t channels) {
  height_ = height;
  width_ = width;
  channels_ = channels;
  if (bytes() > capacity_) {
    data_.reset();
    data_ = std::make_unique_for_overwrite<uint8_t[]>(bytes());
    capacity_ = bytes();
  }
}

absl::Status CheckImageSize(int64_t height, int64_t width, const ImageCodecOptions& options) {
  if (height < 1 || width < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("image of ", height, " x ", width, " pixels (expected at least 1 x 1)"));
  }
  if (height > kMaxImageSide || width > kMaxImageSide) {
    return absl::InvalidArgumentError(absl::StrCat("image of ", height, " x ", width,
                                                   " pixels (expected at most ", kMaxImageSide,
                                                   " x ", kMaxImageSide, ")"));
  }
  if (height > options.max_pixels / width) {
    return absl::InvalidArgumentError(
        absl::StrCat("image of ", height, " x ", width, " has ", height * width,
                     " pixels (expected at most max_pixels, ", options.max_pixels, ")"));
  }
  return absl::OkStatus();
}

absl::Status DecodeImage(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels) {
  if (absl::StartsWith(file, "\xFF\xD8\xFF")) {
    return DecodeJpeg(file, options, pixels);
  }
  if (absl::StartsWith(file, "\x89PNG\r\n\x1A\n")) {
    return DecodePng(file, options, pixels);
  }
  if (file.size() > 15 && absl::StartsWith(file, "RIFF") && file.substr(8, 7) == "WEBPVP8") {
    return DecodeWebp(file, options, pixels);
  }
  if (file.empty()) {
    return absl::InvalidArgumentError("is empty (expected a JPEG, PNG or WebP file)");
  }
  const bool may_be_path = std::ranges::all_of(file, absl::ascii_isprint);
  return absl::InvalidArgumentError(
      absl::StrCat("starts with \"", absl::CHexEscape(file.substr(0, 8)), "\" (",
                   may_be_path ? "a path? expected the content of a JPEG, PNG or WebP file)"
                               : "expected a JPEG, PNG or WebP file)"));
}

}  // namespace braid

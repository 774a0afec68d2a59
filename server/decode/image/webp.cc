#include <webp/decode.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/decode/image/image_codec.h"

namespace braid {
namespace {

absl::Status WebpError(VP8StatusCode code) {
  const auto what = [code] {
    switch (code) {
      case VP8_STATUS_OUT_OF_MEMORY:
        return "cannot be decoded: no memory";
      case VP8_STATUS_UNSUPPORTED_FEATURE:
        return "has an unsupported feature";
      case VP8_STATUS_NOT_ENOUGH_DATA:
      case VP8_STATUS_SUSPENDED:
        return "is truncated";
      default:
        return "is damaged";
    }
  };
  return absl::InvalidArgumentError(absl::StrCat("WebP file ", what()));
}

}  // namespace

absl::Status DecodeWebp(absl::string_view file, const ImageCodecOptions& options, Pixels& pixels) {
  const auto* const data = reinterpret_cast<const uint8_t*>(file.data());
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) {
    return absl::InternalError("libwebp has another version than its header");
  }
  if (const VP8StatusCode code = WebPGetFeatures(data, file.size(), &config.input);
      code != VP8_STATUS_OK) {
    return WebpError(code);
  }
  if (config.input.has_animation != 0) {
    return absl::InvalidArgumentError("WebP file is an animation (expected a single image)");
  }
  BRAID_RETURN_IF_ERROR(CheckImageSize(config.input.height, config.input.width, options));
  pixels.Reset(config.input.height, config.input.width, 3);
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {.rgba = pixels.data(),
                          .stride = static_cast<int>(pixels.row_bytes()),
                          .size = pixels.bytes()};
  const VP8StatusCode code = WebPDecode(data, file.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (code != VP8_STATUS_OK) {
    return WebpError(code);
  }
  if (options.channels == 1) {
    const uint8_t* rgb = pixels.data();
    uint8_t* gray = pixels.data();
    for (int64_t left = pixels.height() * pixels.width(); left > 0; --left, rgb += 3, ++gray) {
      *gray = GrayOfRgb(rgb[0], rgb[1], rgb[2]);
    }
    pixels.Reset(pixels.height(), pixels.width(), 1);
  }
  return absl::OkStatus();
}

}  // namespace braid

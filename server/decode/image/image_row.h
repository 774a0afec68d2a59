// Checks of an ImageSpec, and the shape of the rows that it makes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/row_type.h"
#include "server/decode/decode_spec.h"

namespace braid {

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// Returns a transform's name in JSON, such as "center_crop".
const char* TransformName(const ImageTransform& transform);

// Returns all transforms' names for messages.
std::string TransformNames();

// Returns the size that Resize gives to an image of the size `from`. Requires one or two sizes.
ImageSize ResizedSize(const Resize& resize, ImageSize from);

// Returns the type and shape, [channels, height, width], of the rows. UINT8 without ToFloat, else
// FP32. INVALID_ARGUMENT names the field with an invalid value, starting with `field`, or
// "transforms" if the transforms do not bring all images to one size.
absl::StatusOr<RowType> ImageRow(const ImageSpec& spec, absl::string_view field);

}  // namespace braid

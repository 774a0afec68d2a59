// Transforms of torchvision.transforms.v2 on decoded pixels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/decode/decode_spec.h"
#include "server/decode/decoder.h"
#include "server/decode/image/image_codec.h"
#include "server/decode/image/image_view.h"

namespace braid {

// FP32 value for each value of a byte, by channel.
using ByteTable = std::array<std::array<float, 256>, 3>;

// Image between two transforms, and the memory that it refers to.
struct TransformedImage {
  std::variant<ImageView<uint8_t>, ImageView<float>> view;
  std::shared_ptr<const void> owner;
};

// Applies the transforms of an ImageSpec. Results are equal, bit for bit, to those of torchvision
// on the CPU; random transforms draw from the same distributions. Immutable. Computes on the
// calling thread alone.
class ImageTransforms {
 public:
  // Requires an `image` that ImageRow() accepts.
  explicit ImageTransforms(const ImageSpec& image);

  // Transforms `pixels` and writes the row, [channels, height, width], to `out`. INVALID_ARGUMENT
  // for an image that is too small for a random_crop, or whose resizes exceed max_pixels or
  // kMaxImageRowBytes. Throws LibTorch's errors if there is no memory.
  absl::Status Apply(Pixels& pixels, const DecodeOptions& options, int64_t row, void* out) const;

 private:
  // ToFloat and the Normalize transforms after it, on bytes.
  using Lookup = std::shared_ptr<const ByteTable>;
  struct Step {
    size_t transform = 0;  // index in `image_.transforms`
    std::variant<ImageTransform, Lookup> operation;
  };

  absl::Status ApplyStep(const Step& step, const DecodeOptions& options, int64_t row,
                         int64_t& made_bytes, TransformedImage& image) const;

  ImageSpec image_;
  std::vector<Step> steps_;
  // Table of the last step if its pixels are bytes; the step then also writes the row.
  Lookup last_;
};

}  // namespace braid

// Specification of a decoder, from a model's configuration or a job.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// Limits of a specification.
constexpr int64_t kMaxImageSide = 65'535;  // pixels, of decoded and transformed images
constexpr int64_t kMaxImagePixels = 1'000'000'000;
constexpr int64_t kMaxTransforms = 16;
// Limit on the bytes of a row, and of all images together that its resizes and crops make.
constexpr int64_t kMaxImageRowBytes = int64_t{256} << 20;
constexpr int64_t kMaxTextTokens = int64_t{1} << 20;
constexpr int64_t kMaxPadMultiple = int64_t{1} << 20;

enum class Interpolation { kBilinear, kNearest, kBicubic };

// The transforms have the names, arguments and defaults of torchvision.transforms.v2.

// One size: that of the shorter side; the aspect ratio is kept. Two: height, then width.
struct Resize {
  std::vector<int64_t> size;
  Interpolation interpolation = Interpolation::kBilinear;
  friend bool operator==(const Resize&, const Resize&) = default;
};
struct CenterCrop {
  int64_t height = 0;
  int64_t width = 0;
  friend bool operator==(const CenterCrop&, const CenterCrop&) = default;
};
struct RandomCrop {
  int64_t height = 0;
  int64_t width = 0;
  int64_t padding = 0;  // pixels of zeros on each side, before the crop
  friend bool operator==(const RandomCrop&, const RandomCrop&) = default;
};
struct RandomResizedCrop {
  int64_t height = 0;
  int64_t width = 0;
  double min_scale = 0.08, max_scale = 1;
  double min_ratio = 3.0 / 4, max_ratio = 4.0 / 3;
  Interpolation interpolation = Interpolation::kBilinear;
  friend bool operator==(const RandomResizedCrop&, const RandomResizedCrop&) = default;
};
struct RandomHorizontalFlip {
  double p = 0.5;
  friend bool operator==(const RandomHorizontalFlip&, const RandomHorizontalFlip&) = default;
};
struct RandomVerticalFlip {
  double p = 0.5;
  friend bool operator==(const RandomVerticalFlip&, const RandomVerticalFlip&) = default;
};
// Converts to FP32; `scale` divides by 255.
struct ToFloat {
  bool scale = true;
  friend bool operator==(const ToFloat&, const ToFloat&) = default;
};
struct Normalize {
  std::vector<double> mean;
  std::vector<double> std;
  friend bool operator==(const Normalize&, const Normalize&) = default;
};
using ImageTransform = std::variant<Resize, CenterCrop, RandomCrop, RandomResizedCrop,
                                    RandomHorizontalFlip, RandomVerticalFlip, ToFloat, Normalize>;

// A row is a JPEG, PNG or WebP file and becomes a tensor of shape [channels, height, width].
struct ImageSpec {
  int64_t channels = 3;                    // 1: gray, 3: RGB; other files are converted
  std::vector<ImageTransform> transforms;  // at most kMaxTransforms
  // Maximum number of pixels, at most kMaxImagePixels. A larger image is an error and is not
  // decoded.
  int64_t max_pixels = 100'000'000;
  friend bool operator==(const ImageSpec&, const ImageSpec&) = default;
};

// A row is a UTF-8 text and becomes its token IDs, of shape [length], INT64.
struct TextSpec {
  // File in Hugging Face's format, relative to the model's version folder, its folder, or the
  // dataset.
  std::string tokenizer;
  // Longest text in tokens, special tokens included, at most kMaxTextTokens. 0: no limit.
  int64_t max_length = 0;
  // Cuts texts of more than max_length tokens. False: they are errors.
  bool truncate = false;
  // Adds the tokenizer's special tokens, such as [CLS].
  bool special_tokens = true;
  // Pads rows to max_length. False: pads them to the longest text of the batch.
  bool pad_to_max_length = false;
  // Token that fills shorter rows. -1: the tokenizer's own, else 0.
  int64_t pad_token = -1;
  // Input of the model that gets 1 for each token and 0 for padding, INT64. Empty: none.
  std::string mask;
  friend bool operator==(const TextSpec&, const TextSpec&) = default;
};

using DecodeSpec = std::variant<ImageSpec, TextSpec>;

// Rows of different lengths, such as lists of token IDs, are padded at their end.
struct PadSpec {
  // Element that fills shorter rows.
  double value = 0;
  // Lengths are rounded up to a multiple of it, from 1 to kMaxPadMultiple.
  int64_t multiple = 1;
  // Input of the model that gets 1 for elements and 0 for padding. Empty: none.
  std::string mask = {};
  friend bool operator==(const PadSpec&, const PadSpec&) = default;
};

// Reads the JSON form, with the fields above by name. Examples:
//   {"image": {"transforms": [{"resize": 256}, {"center_crop": {"size": [224, 224]}}, "to_float"]}}
//   {"tokenizer": "tokenizer.json", "max_length": 128}
// A transform is a name with its arguments, {"resize": {"size": 256}}, with its first argument
// only, {"resize": 256}, or without any, "to_float". Fields that are null have their defaults.
// INVALID_ARGUMENT names the field, starting with `field`, and the value.
absl::StatusOr<DecodeSpec> ParseDecodeSpec(absl::string_view json, absl::string_view field);

// Reads the JSON form, with the fields above by name: {"value": 0, "mask": "mask", "multiple": 16}.
// INVALID_ARGUMENT names the field, starting with `field`, and the value.
absl::StatusOr<PadSpec> ParsePadSpec(absl::string_view json, absl::string_view field);

// Checks the values, as ParseDecodeSpec() does. INVALID_ARGUMENT names the field.
absl::Status CheckDecodeSpec(const DecodeSpec& spec, absl::string_view field);

// Returns the name of the first transform that depends on a random number; empty if none does.
absl::string_view RandomTransform(const DecodeSpec& spec);

}  // namespace braid

#include "server/rpc/jobs/decode_messages.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/decode/decode_spec.h"

namespace braid {
namespace {

template <typename Value>
using Repeated = google::protobuf::RepeatedField<Value>;

// Returns the values for messages, such as "[1, 2, 3]".
template <typename Value>
std::string Shown(const Repeated<Value>& values) {
  return absl::StrCat("[", Excerpt(absl::StrJoin(values, ", ")), "]");
}

absl::StatusOr<Interpolation> ReadInterpolation(int value, const std::string& field) {
  switch (value) {
    case braid::v1::INTERPOLATION_UNSPECIFIED:
    case braid::v1::INTERPOLATION_BILINEAR:
      return Interpolation::kBilinear;
    case braid::v1::INTERPOLATION_NEAREST:
      return Interpolation::kNearest;
    case braid::v1::INTERPOLATION_BICUBIC:
      return Interpolation::kBicubic;
    default:
      return InvalidField(absl::StrCat(field, ".interpolation"),
                          absl::StrCat("unknown value ", value,
                                       " (expected INTERPOLATION_BILINEAR, INTERPOLATION_NEAREST "
                                       "or INTERPOLATION_BICUBIC)"));
  }
}

// Reads one size for both sides, or height and width.
template <typename Crop>
absl::Status ReadSize(const Repeated<int64_t>& size, const std::string& field, Crop* crop) {
  if (size.empty() || size.size() > 2) {
    return InvalidField(absl::StrCat(field, ".size"),
                        absl::StrCat(Shown(size), " (expected an integer, or height and width)"));
  }
  crop->height = size[0];
  crop->width = size[size.size() - 1];
  return absl::OkStatus();
}

// Reads the ends of a range; empty: keeps the default.
absl::Status ReadRange(const Repeated<double>& range, const std::string& field, double* min,
                       double* max) {
  if (range.empty()) {
    return absl::OkStatus();
  }
  if (range.size() != 2) {
    return InvalidField(field,
                        absl::StrCat(Shown(range), " (expected two numbers, the lower one first)"));
  }
  *min = range[0];
  *max = range[1];
  return absl::OkStatus();
}

absl::StatusOr<ImageTransform> ReadRandomResizedCrop(const braid::v1::RandomResizedCrop& message,
                                                     const std::string& field) {
  RandomResizedCrop crop;
  BRAID_RETURN_IF_ERROR(ReadSize(message.size(), field, &crop));
  BRAID_RETURN_IF_ERROR(
      ReadRange(message.scale(), absl::StrCat(field, ".scale"), &crop.min_scale, &crop.max_scale));
  BRAID_RETURN_IF_ERROR(
      ReadRange(message.ratio(), absl::StrCat(field, ".ratio"), &crop.min_ratio, &crop.max_ratio));
  BRAID_ASSIGN_OR_RETURN(crop.interpolation, ReadInterpolation(message.interpolation(), field));
  return crop;
}

absl::StatusOr<ImageTransform> ReadTransform(const braid::v1::ImageTransform& message,
                                             const std::string& field) {
  switch (message.kind_case()) {
    case braid::v1::ImageTransform::kResize: {
      Resize resize;
      resize.size.assign(message.resize().size().begin(), message.resize().size().end());
      BRAID_ASSIGN_OR_RETURN(
          resize.interpolation,
          ReadInterpolation(message.resize().interpolation(), absl::StrCat(field, ".resize")));
      return resize;
    }
    case braid::v1::ImageTransform::kCenterCrop: {
      CenterCrop crop;
      BRAID_RETURN_IF_ERROR(
          ReadSize(message.center_crop().size(), absl::StrCat(field, ".center_crop"), &crop));
      return crop;
    }
    case braid::v1::ImageTransform::kRandomCrop: {
      RandomCrop crop;
      BRAID_RETURN_IF_ERROR(
          ReadSize(message.random_crop().size(), absl::StrCat(field, ".random_crop"), &crop));
      crop.padding = message.random_crop().padding();
      return crop;
    }
    case braid::v1::ImageTransform::kRandomResizedCrop:
      return ReadRandomResizedCrop(message.random_resized_crop(),
                                   absl::StrCat(field, ".random_resized_crop"));
    case braid::v1::ImageTransform::kRandomHorizontalFlip: {
      RandomHorizontalFlip flip;
      if (message.random_horizontal_flip().has_p()) {
        flip.p = message.random_horizontal_flip().p();
      }
      return flip;
    }
    case braid::v1::ImageTransform::kRandomVerticalFlip: {
      RandomVerticalFlip flip;
      if (message.random_vertical_flip().has_p()) {
        flip.p = message.random_vertical_flip().p();
      }
      return flip;
    }
    case braid::v1::ImageTransform::kToFloat: {
      ToFloat to_float;
      if (message.to_float().has_scale()) {
        to_float.scale = message.to_float().scale();
      }
      return to_float;
    }
    case braid::v1::ImageTransform::kNormalize: {
      const braid::v1::Normalize& own = message.normalize();
      return Normalize{{own.mean().begin(), own.mean().end()},
                       {own.std().begin(), own.std().end()}};
    }
    default:
      return InvalidField(field, "missing (expected a transform)");
  }
}

absl::StatusOr<DecodeSpec> ReadImage(const braid::v1::ImageDecode& message,
                                     const std::string& field) {
  ImageSpec image;
  if (message.channels() != 0) {
    image.channels = message.channels();
  }
  if (message.max_pixels() != 0) {
    image.max_pixels = message.max_pixels();
  }
  for (int i = 0; i < message.transforms_size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(
        ImageTransform transform,
        ReadTransform(message.transforms(i), absl::StrCat(field, ".transforms[", i, "]")));
    image.transforms.push_back(std::move(transform));
  }
  return image;
}

DecodeSpec ReadText(const braid::v1::TextDecode& message) {
  TextSpec text;
  text.tokenizer = message.tokenizer();
  text.max_length = message.max_length();
  text.truncate = message.truncate();
  text.special_tokens = !message.has_special_tokens() || message.special_tokens();
  text.pad_to_max_length = message.pad_to_max_length();
  if (message.has_pad_token()) {
    text.pad_token = message.pad_token();
  }
  text.mask = message.mask();
  return text;
}

}  // namespace

absl::StatusOr<std::optional<DecodeSpec>> ReadDecode(const braid::v1::Decode& message,
                                                     const std::string& field) {
  std::optional<DecodeSpec> spec;
  if (message.has_image()) {
    BRAID_ASSIGN_OR_RETURN(spec, ReadImage(message.image(), absl::StrCat(field, ".image")));
  } else if (message.has_text()) {
    spec = ReadText(message.text());
  }
  if (spec.has_value()) {
    BRAID_RETURN_IF_ERROR(CheckDecodeSpec(*spec, field));
  }
  return spec;
}

}  // namespace braid

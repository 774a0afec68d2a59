#include "server/decode/image/image_row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

// In the order of ImageTransform.
constexpr std::array<const char*, std::variant_size_v<ImageTransform>> kNames = {
    "resize",
    "center_crop",
    "random_crop",
    "random_resized_crop",
    "random_horizontal_flip",
    "random_vertical_flip",
    "to_float",
    "normalize"};

// Returns the values for messages, such as "[1, 2, 3]".
template <typename Value>
std::string Shown(const std::vector<Value>& values) {
  return absl::StrCat("[", Excerpt(absl::StrJoin(values, ", ")), "]");
}

// Follows an image through the transforms and checks each.
class Checker {
 public:
  Checker(const ImageSpec& spec, std::string where) : spec_(spec), where_(std::move(where)) {}

  absl::StatusOr<RowType> Check() {
    if (spec_.channels != 1 && spec_.channels != 3) {
      return Invalid("channels",
                     absl::StrCat(spec_.channels, " (expected 1 for gray or 3 for RGB)"));
    }
    if (spec_.max_pixels < 1 || spec_.max_pixels > kMaxImagePixels) {
      return Invalid("max_pixels",
                     absl::StrCat(spec_.max_pixels, " (expected 1 to ", kMaxImagePixels, ")"));
    }
    if (spec_.transforms.size() > kMaxTransforms) {
      return Invalid("transforms",
                     absl::StrCat(spec_.transforms.size(), " transforms (expected at most ",
                                  kMaxTransforms, ")"));
    }
    const std::string spec_where = where_;
    for (size_t i = 0; i < spec_.transforms.size(); ++i) {
      const ImageTransform& transform = spec_.transforms[i];
      where_ = absl::StrCat(spec_where, ".transforms[", i, "].", TransformName(transform));
      BRAID_RETURN_IF_ERROR(
          std::visit([this](const auto& checked) { return CheckOne(checked); }, transform));
    }
    where_ = spec_where;
    if (!size_.has_value()) {
      return Invalid("transforms",
                     "images of different sizes do not fit one tensor: add a center_crop, a "
                     "random_crop, a random_resized_crop, or a resize with height and width");
    }
    if (const int64_t bytes = Bytes(*size_); bytes > kMaxImageRowBytes) {
      return Invalid("transforms", absl::StrCat("make rows of ", bytes, " bytes (expected at most ",
                                                kMaxImageRowBytes, ")"));
    }
    return RowType{.type = is_float_ ? DataType::kFp32 : DataType::kUint8,
                   .shape = {spec_.channels, size_->height, size_->width}};
  }

 private:
  absl::Status Invalid(absl::string_view name, absl::string_view what) const {
    return InvalidField(absl::StrCat(where_, ".", name), what);
  }

  absl::Status CheckSides(absl::Span<const int64_t> sides) const {
    for (const int64_t side : sides) {
      if (side < 1 || side > kMaxImageSide) {
        return Invalid("size", absl::StrCat(side, " (expected 1 to ", kMaxImageSide, " pixels)"));
      }
    }
    return absl::OkStatus();
  }

  int64_t Bytes(ImageSize size) const {
    return spec_.channels * size.height * size.width *
           static_cast<int64_t>(DataTypeSize(is_float_ ? DataType::kFp32 : DataType::kUint8));
  }

  absl::Status SetSize(ImageSize size) {
    if (size.height * size.width > spec_.max_pixels) {
      return Invalid("size",
                     absl::StrCat("makes images of ", size.height, " x ", size.width,
                                  " pixels (expected at most max_pixels, ", spec_.max_pixels, ")"));
    }
    size_ = size;
    made_bytes_ += Bytes(size);
    if (made_bytes_ > kMaxImageRowBytes) {
      return Invalid("size", absl::StrCat("makes images of ", size.height, " x ", size.width,
                                          " pixels: the resized and cropped images of a row take ",
                                          made_bytes_, " bytes in total (expected at most ",
                                          kMaxImageRowBytes, ")"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckProbability(double p) const {
    if (!(p >= 0 && p <= 1)) {
      return Invalid("p", absl::StrCat(p, " (expected 0 to 1)"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRange(absl::string_view name, double min, double max) const {
    if (!(min > 0 && min <= max && std::isfinite(max))) {
      return Invalid(name, absl::StrCat("[", min, ", ", max,
                                        "] (expected two positive numbers in ascending order)"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOne(const Resize& resize) {
    if (resize.size.empty() || resize.size.size() > 2) {
      return Invalid(
          "size", absl::StrCat(Shown(resize.size), " (expected an integer, or height and width)"));
    }
    BRAID_RETURN_IF_ERROR(CheckSides(resize.size));
    if (resize.size.size() == 2 || size_.has_value()) {
      return SetSize(ResizedSize(resize, size_.value_or(ImageSize{})));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOne(const CenterCrop& crop) {
    BRAID_RETURN_IF_ERROR(CheckSides({crop.height, crop.width}));
    return SetSize({crop.height, crop.width});
  }

  absl::Status CheckOne(const RandomCrop& crop) {
    BRAID_RETURN_IF_ERROR(CheckSides({crop.height, crop.width}));
    if (crop.padding < 0 || crop.padding > kMaxImageSide) {
      return Invalid("padding",
                     absl::StrCat(crop.padding, " (expected 0 to ", kMaxImageSide, " pixels)"));
    }
    const int64_t padded = 2 * crop.padding;
    if (size_.has_value() &&
        (size_->height + padded < crop.height || size_->width + padded < crop.width)) {
      return Invalid("size",
                     absl::StrCat(crop.height, " x ", crop.width, " pixels (expected at most ",
                                  size_->height + padded, " x ", size_->width + padded,
                                  ", the size of the images with their padding)"));
    }
    return SetSize({crop.height, crop.width});
  }

  absl::Status CheckOne(const RandomResizedCrop& crop) {
    BRAID_RETURN_IF_ERROR(CheckSides({crop.height, crop.width}));
    BRAID_RETURN_IF_ERROR(CheckRange("scale", crop.min_scale, crop.max_scale));
    BRAID_RETURN_IF_ERROR(CheckRange("ratio", crop.min_ratio, crop.max_ratio));
    return SetSize({crop.height, crop.width});
  }

  absl::Status CheckOne(const RandomHorizontalFlip& flip) { return CheckProbability(flip.p); }
  absl::Status CheckOne(const RandomVerticalFlip& flip) { return CheckProbability(flip.p); }

  absl::Status CheckOne(const ToFloat& /*to_float*/) {
    is_float_ = true;
    return absl::OkStatus();
  }

  absl::Status CheckLength(absl::string_view name, const std::vector<double>& values) const {
    const auto length = static_cast<int64_t>(values.size());
    if (length == 1 || length == spec_.channels) {
      return absl::OkStatus();
    }
    return Invalid(
        name,
        absl::StrCat(Shown(values), " (expected ",
                     spec_.channels == 1 ? "1 number" : "1 number, or 3, one per channel", ")"));
  }

  absl::Status CheckOne(const Normalize& normalize) {
    if (!is_float_) {
      return InvalidField(where_, "needs FP32 values: add to_float before it");
    }
    BRAID_RETURN_IF_ERROR(CheckLength("mean", normalize.mean));
    BRAID_RETURN_IF_ERROR(CheckLength("std", normalize.std));
    for (const double mean : normalize.mean) {
      if (!std::isfinite(static_cast<float>(mean))) {
        return Invalid("mean", absl::StrCat(mean, " (expected a finite FP32 number)"));
      }
    }
    for (const double std : normalize.std) {
      if (!std::isfinite(static_cast<float>(std)) || static_cast<float>(std) == 0) {
        return Invalid("std", absl::StrCat(std, " (expected a finite FP32 number other than 0)"));
      }
    }
    return absl::OkStatus();
  }

  const ImageSpec& spec_;
  std::string where_;
  bool is_float_ = false;
  std::optional<ImageSize> size_;
  int64_t made_bytes_ = 0;  // of the images of all resizes and crops so far
};

}  // namespace

const char* TransformName(const ImageTransform& transform) { return kNames[transform.index()]; }

std::string TransformNames() { return absl::StrJoin(kNames, ", "); }

ImageSize ResizedSize(const Resize& resize, ImageSize from) {
  if (resize.size.size() == 2) {
    return {resize.size[0], resize.size[1]};
  }
  const int64_t size = resize.size[0];
  const auto longer = [size](int64_t long_side, int64_t short_side) {
    return static_cast<int64_t>(static_cast<double>(size * long_side) /
                                static_cast<double>(short_side));
  };
  return from.width <= from.height ? ImageSize{longer(from.height, from.width), size}
                                   : ImageSize{size, longer(from.width, from.height)};
}

absl::StatusOr<RowType> ImageRow(const ImageSpec& spec, absl::string_view field) {
  return Checker(spec, std::string(field)).Check();
}

}  // namespace braid

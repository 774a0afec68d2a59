#include "server/decode/image/image_transforms.h"

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "server/base/random_seed.h"
#include "server/base/status.h"
#include "server/decode/decoder.h"
#include "server/decode/image/image_row.h"

namespace braid {
namespace {

// Keeps LibTorch from sharing the calling thread's work with others, in a scope.
class OneThreadGuard {
 public:
  OneThreadGuard() : threads_(at::get_num_threads()) { Set(1); }
  ~OneThreadGuard() { Set(threads_); }
  OneThreadGuard(const OneThreadGuard&) = delete;
  OneThreadGuard& operator=(const OneThreadGuard&) = delete;

 private:
  static void Set(int threads) {
    // In LibTorch's OpenMP library: linking with OpenMP would add a second one. Unlike
    // at::set_num_threads(), it does not change how many threads later threads start with.
    static const auto kSetThreads =
        reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (kSetThreads != nullptr) {
      kSetThreads(threads);
    }
  }

  const int threads_;
};

std::string SizeText(ImageSize size) { return absl::StrCat(size.height, " x ", size.width); }

// Memory for an image in the order of rows, columns and channels.
template <typename T>
struct NewImage {
  NewImage(ImageSize size, int64_t channels)
      : values(std::make_unique_for_overwrite<T[]>(
            static_cast<size_t>(size.height * size.width * channels))),
        view(PackedView<T>(values.get(), size, channels)) {}

  TransformedImage Take() && { return {view, std::shared_ptr<T[]>(std::move(values))}; }

  std::unique_ptr<T[]> values;
  ImageView<T> view;
};

constexpr auto kCopy = [](auto value, int64_t /*channel*/) { return value; };

// Crops a window that may exceed the image, which zeros then surround.
template <typename T>
void Crop(const ImageView<T>& view, int64_t top, int64_t left, ImageSize size,
          TransformedImage& image) {
  if (top >= 0 && left >= 0 && top + size.height <= view.size.height &&
      left + size.width <= view.size.width) {
    image.view = CropView(view, top, left, size);
    return;
  }
  NewImage<T> padded(size, view.channels);
  std::fill_n(padded.values.get(), size.height * size.width * view.channels, T{0});
  const int64_t first_y = std::max<int64_t>(top, 0);
  const int64_t first_x = std::max<int64_t>(left, 0);
  const ImageSize common = {std::min(top + size.height, view.size.height) - first_y,
                            std::min(left + size.width, view.size.width) - first_x};
  if (common.height > 0 && common.width > 0) {
    WriteHwc(CropView(view, first_y, first_x, common),
             padded.values.get() + (first_y - top) * padded.view.row +
                 (first_x - left) * padded.view.column,
             padded.view.row, kCopy);
  }
  image = std::move(padded).Take();
}

at::Tensor Interpolate(const at::Tensor& image, ImageSize size, Interpolation interpolation) {
  const std::array<int64_t, 2> sizes = {size.height, size.width};
  switch (interpolation) {
    case Interpolation::kBilinear:
      return at::_upsample_bilinear2d_aa(image, sizes, /*align_corners=*/false);
    case Interpolation::kBicubic:
      return at::_upsample_bicubic2d_aa(image, sizes, /*align_corners=*/false);
    case Interpolation::kNearest:
      return at::upsample_nearest2d(image, sizes);
  }
  return image;
}

template <typename T>
void ResizeTo(const ImageView<T>& view, ImageSize size, Interpolation interpolation,
              TransformedImage& image) {
  if (size == view.size) {
    image.view = view;  // It may be a window of the image.
    return;
  }
  if (!view.IsPacked()) {
    NewImage<T> packed(view.size, view.channels);
    WriteHwc(view, packed.values.get(), packed.view.row, kCopy);
    const ImageView<T> copy = packed.view;
    image = std::move(packed).Take();
    ResizeTo(copy, size, interpolation, image);
    return;
  }
  const at::Tensor tensor = at::from_blob(
      const_cast<T*>(view.data), {1, view.channels, view.size.height, view.size.width},
      {view.size.height * view.row, 1, view.row, view.column},
      at::TensorOptions().dtype(std::is_same_v<T, float> ? at::kFloat : at::kByte));
  const OneThreadGuard guard;
  const auto resized = std::make_shared<at::Tensor>(Interpolate(tensor, size, interpolation));
  image.view = ImageView<T>{.data = resized->const_data_ptr<T>(),
                            .size = size,
                            .channels = view.channels,
                            .row = resized->stride(2),
                            .column = resized->stride(3),
                            .channel = resized->stride(1)};
  image.owner = resized;
}

// Random numbers of one transform of one row. They depend only on the constructor's arguments, not
// on threads or batches.
class RandomNumbers {
 public:
  RandomNumbers(const DecodeOptions& options, int64_t row, uint64_t transform)
      : key_(MixSeed(
            MixSeed(MixSeed(MixSeed(options.seed, kStream), static_cast<uint64_t>(options.epoch)),
                    static_cast<uint64_t>(row)),
            transform)) {}

  // Returns a number in [low, high).
  double Uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(Next() >> 11U) * 0x1p-53);
  }

  // Returns an integer in [0, size). Requires a positive size.
  int64_t Below(int64_t size) {
    return static_cast<int64_t>(
        static_cast<unsigned __int128>(Next()) * static_cast<uint64_t>(size) >> 64U);
  }

 private:
  // Separates these numbers from those for the order of rows, which use the same seed.
  static constexpr uint64_t kStream = 0x696d616765;

  uint64_t Next() { return MixSeed(key_, count_++); }

  const uint64_t key_;
  uint64_t count_ = 0;
};

// Applies one transform to the image of `view`, which `image` holds.
template <typename T>
class Application {
 public:
  // `made_bytes`: of the images that resizes have made for this row.
  Application(const ImageView<T>& view, int64_t max_pixels, RandomNumbers random,
              int64_t& made_bytes, TransformedImage& image)
      : view_(view),
        max_pixels_(max_pixels),
        random_(random),
        made_bytes_(made_bytes),
        image_(image) {}

  absl::Status operator()(const Resize& resize) {
    const ImageSize size = ResizedSize(resize, view_.size);
    if (size.height > max_pixels_ / size.width) {
      return absl::InvalidArgumentError(absl::StrCat(
          "would make an image of ", SizeText(size), ", which has ", size.height * size.width,
          " pixels (expected at most max_pixels, ", max_pixels_, ")"));
    }
    made_bytes_ += size.height * size.width * view_.channels * static_cast<int64_t>(sizeof(T));
    if (made_bytes_ > kMaxImageRowBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("at ", SizeText(size), " pixels, the resized images of this row take ",
                       made_bytes_, " bytes in total (expected at most ", kMaxImageRowBytes, ")"));
    }
    ResizeTo(view_, size, resize.interpolation, image_);
    return absl::OkStatus();
  }

  absl::Status operator()(const CenterCrop& crop) {
    // Rounds half to even, as Python does.
    const auto start = [](int64_t size, int64_t cropped) {
      return cropped > size
                 ? -((cropped - size) / 2)
                 : static_cast<int64_t>(std::nearbyint(static_cast<double>(size - cropped) / 2));
    };
    Crop(view_, start(view_.size.height, crop.height), start(view_.size.width, crop.width),
         {crop.height, crop.width}, image_);
    return absl::OkStatus();
  }

  absl::Status operator()(const RandomCrop& crop) {
    const int64_t rows = view_.size.height + 2 * crop.padding - crop.height;
    const int64_t columns = view_.size.width + 2 * crop.padding - crop.width;
    if (rows < 0 || columns < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("image of ", SizeText(view_.size), " pixels and padding of ", crop.padding,
                       " (expected at least ", crop.height, " x ", crop.width, " pixels)"));
    }
    const int64_t top = random_.Below(rows + 1);
    const int64_t left = random_.Below(columns + 1);
    Crop(view_, top - crop.padding, left - crop.padding, {crop.height, crop.width}, image_);
    return absl::OkStatus();
  }

  absl::Status operator()(const RandomResizedCrop& crop) {
    const auto [top, left, size] = DrawWindow(crop);
    ResizeTo(CropView(view_, top, left, size), {crop.height, crop.width}, crop.interpolation,
             image_);
    return absl::OkStatus();
  }

  absl::Status operator()(const RandomHorizontalFlip& flip) {
    if (random_.Uniform(0, 1) < flip.p) {
      image_.view = FlipColumns(view_);
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const RandomVerticalFlip& flip) {
    if (random_.Uniform(0, 1) < flip.p) {
      image_.view = FlipRows(view_);
    }
    return absl::OkStatus();
  }

  // Bytes have a Lookup instead.
  absl::Status operator()(const ToFloat& /*to_float*/) { return absl::OkStatus(); }

  absl::Status operator()(const Normalize& normalize) {
    NewImage<float> normalized(view_.size, view_.channels);
    WriteHwc(view_, normalized.values.get(), normalized.view.row,
             [&](float value, int64_t channel) { return Normalized(value, normalize, channel); });
    image_ = std::move(normalized).Take();
    return absl::OkStatus();
  }

  static float Normalized(float value, const Normalize& normalize, int64_t channel) {
    const auto of_channel = [channel](const std::vector<double>& values) {
      return static_cast<float>(values.size() == 1 ? values[0]
                                                   : values[static_cast<size_t>(channel)]);
    };
    return (value - of_channel(normalize.mean)) / of_channel(normalize.std);
  }

 private:
  struct Window {
    int64_t top = 0;
    int64_t left = 0;
    ImageSize size;
  };

  // Same method as RandomResizedCrop.make_params().
  Window DrawWindow(const RandomResizedCrop& crop) {
    const auto [height, width] = view_.size;
    const double area = static_cast<double>(height) * static_cast<double>(width);
    constexpr int kAttempts = 10;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const double target = area * random_.Uniform(crop.min_scale, crop.max_scale);
      const double ratio =
          std::exp(random_.Uniform(std::log(crop.min_ratio), std::log(crop.max_ratio)));
      const double w = std::nearbyint(std::sqrt(target * ratio));
      const double h = std::nearbyint(std::sqrt(target / ratio));
      if (w >= 1 && h >= 1 && w <= static_cast<double>(width) && h <= static_cast<double>(height)) {
        const ImageSize size = {static_cast<int64_t>(h), static_cast<int64_t>(w)};
        const int64_t top = random_.Below(height - size.height + 1);
        const int64_t left = random_.Below(width - size.width + 1);
        return {top, left, size};
      }
    }
    // The center, with the nearest ratio that is allowed.
    ImageSize size = view_.size;
    const double ratio = static_cast<double>(width) / static_cast<double>(height);
    const auto rounded = [](double side) {
      return std::max<int64_t>(static_cast<int64_t>(std::nearbyint(side)), 1);
    };
    if (ratio < crop.min_ratio) {
      size.height = rounded(static_cast<double>(width) / crop.min_ratio);
    } else if (ratio > crop.max_ratio) {
      size.width = rounded(static_cast<double>(height) * crop.max_ratio);
    }
    return {(height - size.height) / 2, (width - size.width) / 2, size};
  }

  const ImageView<T> view_;
  const int64_t max_pixels_;
  RandomNumbers random_;
  int64_t& made_bytes_;
  TransformedImage& image_;
};

void Look(const ByteTable& table, TransformedImage& image) {
  const auto view = std::get<ImageView<uint8_t>>(image.view);
  NewImage<float> looked(view.size, view.channels);
  WriteHwc(view, looked.values.get(), looked.view.row, [&](uint8_t value, int64_t channel) {
    return table[static_cast<size_t>(channel)][value];
  });
  image = std::move(looked).Take();
}

ByteTable TableOf(const ToFloat& to_float) {
  ByteTable table;
  for (auto& values : table) {
    for (size_t byte = 0; byte < values.size(); ++byte) {
      values[byte] = static_cast<float>(byte);
      if (to_float.scale) {
        values[byte] *= static_cast<float>(1.0 / 255);
      }
    }
  }
  return table;
}

void NormalizeTable(const Normalize& normalize, int64_t channels, ByteTable& table) {
  for (int64_t channel = 0; channel < channels; ++channel) {
    for (float& value : table[static_cast<size_t>(channel)]) {
      value = Application<float>::Normalized(value, normalize, channel);
    }
  }
}

}  // namespace

ImageTransforms::ImageTransforms(const ImageSpec& image) : image_(image) {
  std::shared_ptr<ByteTable> table;  // of the last step, if it is a Lookup
  bool is_float = false;
  for (size_t i = 0; i < image_.transforms.size(); ++i) {
    const ImageTransform& transform = image_.transforms[i];
    if (const auto* to_float = std::get_if<ToFloat>(&transform)) {
      if (!is_float) {
        table = std::make_shared<ByteTable>(TableOf(*to_float));
        steps_.push_back({i, table});
        is_float = true;
      }
    } else if (const auto* normalize = std::get_if<Normalize>(&transform);
               normalize != nullptr && table != nullptr) {
      NormalizeTable(*normalize, image_.channels, *table);
    } else {
      steps_.push_back({i, transform});
      table = nullptr;
    }
  }
  if (table != nullptr) {
    last_ = table;
    steps_.pop_back();
  }
}

absl::Status ImageTransforms::ApplyStep(const Step& step, const DecodeOptions& options, int64_t row,
                                        int64_t& made_bytes, TransformedImage& image) const {
  if (const auto* table = std::get_if<Lookup>(&step.operation)) {
    Look(**table, image);
    return absl::OkStatus();
  }
  const auto& transform = std::get<ImageTransform>(step.operation);
  const absl::Status status = std::visit(
      [&](const auto& view) {
        using T = typename std::decay_t<decltype(view)>::Element;
        return std::visit(
            Application<T>(view, image_.max_pixels, RandomNumbers(options, row, step.transform),
                           made_bytes, image),
            transform);
      },
      // A copy, because the transform replaces the image.
      std::variant(image.view));
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(TransformName(transform), ": ", status.message()));
  }
  return absl::OkStatus();
}

absl::Status ImageTransforms::Apply(Pixels& pixels, const DecodeOptions& options, int64_t row,
                                    void* out) const {
  TransformedImage image = {
      PackedView<uint8_t>(pixels.data(), {pixels.height(), pixels.width()}, pixels.channels()),
      nullptr};
  int64_t made_bytes = 0;
  for (const Step& step : steps_) {
    BRAID_RETURN_IF_ERROR(ApplyStep(step, options, row, made_bytes, image));
  }
  if (last_ != nullptr) {
    WriteChw(std::get<ImageView<uint8_t>>(image.view), static_cast<float*>(out),
             [&table = *last_](uint8_t value, int64_t channel) {
               return table[static_cast<size_t>(channel)][value];
             });
    return absl::OkStatus();
  }
  std::visit(
      [out](const auto& view) {
        using T = typename std::decay_t<decltype(view)>::Element;
        WriteChw(view, static_cast<T*>(out), kCopy);
      },
      image.view);
  return absl::OkStatus();
}

}  // namespace braid

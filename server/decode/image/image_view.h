// Images in memory, and copies of them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "server/decode/image/image_row.h"

namespace braid {

// Element (y, x, c) is data[y * row + x * column + c * channel]. Strides are in elements; those of
// a flipped image are negative.
template <typename T>
struct ImageView {
  using Element = T;

  const T* data = nullptr;
  ImageSize size;
  int64_t channels = 0;
  int64_t row = 0;
  int64_t column = 0;
  int64_t channel = 0;

  // Returns true if the elements lie in the order of rows, columns and channels without gaps.
  bool IsPacked() const {
    return (channel == 1 || channels == 1) && column == channels && row == column * size.width;
  }
};

// Returns the view of an array in the order of rows, columns and channels.
template <typename T>
ImageView<T> PackedView(const T* data, ImageSize size, int64_t channels) {
  return {.data = data,
          .size = size,
          .channels = channels,
          .row = size.width * channels,
          .column = channels,
          .channel = 1};
}

// Returns a part of `image`. Requires that the part lies within the image.
template <typename T>
ImageView<T> CropView(ImageView<T> image, int64_t top, int64_t left, ImageSize size) {
  image.data += top * image.row + left * image.column;
  image.size = size;
  return image;
}

template <typename T>
ImageView<T> FlipColumns(ImageView<T> image) {
  image.data += (image.size.width - 1) * image.column;
  image.column = -image.column;
  return image;
}

template <typename T>
ImageView<T> FlipRows(ImageView<T> image) {
  image.data += (image.size.height - 1) * image.row;
  image.row = -image.row;
  return image;
}

// Writes convert(element, channel) for each element in the order of rows, columns and channels;
// rows of `out` begin `out_row` elements apart.
template <typename T, typename Out, typename Convert>
void WriteHwc(const ImageView<T>& image, Out* out, int64_t out_row, Convert convert) {
  for (int64_t y = 0; y < image.size.height; ++y) {
    const T* in = image.data + y * image.row;
    Out* to = out + y * out_row;
    for (int64_t x = 0; x < image.size.width; ++x, in += image.column) {
      for (int64_t c = 0; c < image.channels; ++c) {
        *to++ = convert(in[c * image.channel], c);
      }
    }
  }
}

// Writes convert(element, channel) in the order of channels, rows and columns, without gaps.
template <typename T, typename Out, typename Convert>
void WriteChw(const ImageView<T>& image, Out* out, Convert convert) {
  const int64_t plane = image.size.height * image.size.width;
  const auto write = [&](auto channels) {
    for (int64_t y = 0; y < image.size.height; ++y) {
      const T* in = image.data + y * image.row;
      Out* to = out + y * image.size.width;
      for (int64_t x = 0; x < image.size.width; ++x, in += image.column) {
        for (int64_t c = 0; c < channels; ++c) {
          to[c * plane + x] = convert(in[c * image.channel], c);
        }
      }
    }
  };
  // With a constant, the compiler unrolls the inner loop.
  if (image.channels == 1) {
    write(std::integral_constant<int64_t, 1>());
  } else {
    write(std::integral_constant<int64_t, 3>());
  }
}

}  // namespace braid

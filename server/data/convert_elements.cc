#include "server/data/convert_elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "arrow/util/float16.h"

namespace braid {
namespace {

// Elements of a type whose bits are not a C++ number.
struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

// Elements are converted in blocks, through the widest type of their kind: int64_t, uint64_t, float
// or double. This needs 13 readers and 4 * 13 writers instead of 13 * 13 converters.
constexpr size_t kBlock = 1024;

float ToFloat(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16U); }

Bf16 ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return {0x7FC0};
  }
  // Rounds to nearest, ties to even.
  return {static_cast<uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U)};
}

template <typename T>
auto Widen(T value) {
  if constexpr (std::is_same_v<T, Fp16>) {
    return arrow::util::Float16::FromBits(value.bits).ToFloat();
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return ToFloat(value);
  } else if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, uint64_t>) {
    return value;
  } else {
    return static_cast<int64_t>(value);
  }
}

// Floating-point arithmetic is done in float for FP16 and BF16, as PyTorch does.
template <typename To, typename Wide>
bool Narrow(Wide value, double scale, To* to) {
  if constexpr (std::is_same_v<To, double>) {
    *to = static_cast<double>(value) * scale;
    return true;
  } else if constexpr (std::is_same_v<To, float>) {
    *to = static_cast<float>(value) * static_cast<float>(scale);
    return true;
  } else if constexpr (std::is_same_v<To, Fp16>) {
    const auto exact = arrow::util::Float16::FromFloat(static_cast<float>(value));
    const float scaled = exact.ToFloat() * static_cast<float>(scale);
    to->bits = arrow::util::Float16::FromFloat(scaled).bits();
    return true;
  } else if constexpr (std::is_same_v<To, Bf16>) {
    *to = ToBf16(ToFloat(ToBf16(static_cast<float>(value))) * static_cast<float>(scale));
    return true;
  } else if constexpr (std::is_floating_point_v<Wide>) {
    // Both bounds are powers of two, which floating point represents exactly.
    constexpr auto kHalf = std::numeric_limits<To>::max() / 2 + 1;
    constexpr Wide kEnd = static_cast<Wide>(kHalf) * 2;
    constexpr Wide kBegin = static_cast<Wide>(std::numeric_limits<To>::min());
    if (!(value >= kBegin && value < kEnd) || std::trunc(value) != value) {
      return false;
    }
    *to = static_cast<To>(value);
    return true;
  } else {
    if (!std::in_range<std::conditional_t<std::is_same_v<To, bool>, uint8_t, To>>(value) ||
        (std::is_same_v<To, bool> && value > Wide{1})) {
      return false;
    }
    *to = static_cast<To>(value);
    return true;
  }
}

// Calls `use` with a value of the C++ type of `type`.
template <typename Use>
auto WithType(DataType type, Use use) {
  switch (type) {
    case DataType::kBool:
      return use(bool{});
    case DataType::kUint8:
      return use(uint8_t{});
    case DataType::kUint16:
      return use(uint16_t{});
    case DataType::kUint32:
      return use(uint32_t{});
    case DataType::kUint64:
      return use(uint64_t{});
    case DataType::kInt8:
      return use(int8_t{});
    case DataType::kInt16:
      return use(int16_t{});
    case DataType::kInt32:
      return use(int32_t{});
    case DataType::kInt64:
      return use(int64_t{});
    case DataType::kFp16:
      return use(Fp16{});
    case DataType::kBf16:
      return use(Bf16{});
    case DataType::kFp32:
      return use(float{});
    case DataType::kFp64:
      break;
  }
  return use(double{});
}

template <typename Wide>
std::optional<size_t> Write(const Wide* values, DataType to, double scale, size_t count,
                            char* target) {
  return WithType(to, [&](auto example) -> std::optional<size_t> {
    using To = decltype(example);
    for (size_t i = 0; i < count; ++i) {
      To value{};
      if (!Narrow<To>(values[i], scale, &value)) {
        return i;
      }
      std::memcpy(target + i * sizeof(To), &value, sizeof(To));
    }
    return std::nullopt;
  });
}

template <typename From>
std::optional<size_t> Convert(const char* source, DataType to, double scale, size_t count,
                              char* target) {
  std::array<decltype(Widen(From{})), kBlock> wide;
  for (size_t done = 0; done < count; done += kBlock) {
    const size_t block = std::min(kBlock, count - done);
    for (size_t i = 0; i < block; ++i) {
      if constexpr (std::is_same_v<From, bool>) {
        // Any other byte than 0 and 1 is not a valid bool.
        wide[i] = source[done + i] != 0;
      } else {
        From value;
        std::memcpy(&value, source + (done + i) * sizeof(From), sizeof(From));
        wide[i] = Widen(value);
      }
    }
    if (const auto bad = Write(wide.data(), to, scale, block, target + done * DataTypeSize(to))) {
      return done + *bad;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<size_t> ConvertElements(DataType from, const void* source, DataType to, double scale,
                                      size_t count, void* target) {
  if (count == 0) {
    return std::nullopt;
  }
  if (from == to && scale == 1) {
    std::memcpy(target, source, count * DataTypeSize(to));
    return std::nullopt;
  }
  return WithType(from, [&](auto example) {
    return Convert<decltype(example)>(static_cast<const char*>(source), to, scale, count,
                                      static_cast<char*>(target));
  });
}

}  // namespace braid

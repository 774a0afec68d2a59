// Random numbers of an image's transforms.
#pragma once

#include <cstdint>

#include "server/base/random_seed.h"
#include "server/decode/decoder.h"

namespace braid {

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

}  // namespace braid

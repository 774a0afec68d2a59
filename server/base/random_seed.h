// Seeds of independent random sequences, derived from one seed.
#pragma once

#include <cstdint>

namespace braid {

// Mixes `seed` and `stream`, so that similar inputs give unrelated sequences: two rounds of
// SplitMix64's finalizer (Steele, Lea and Flood, 2014).
inline uint64_t MixSeed(uint64_t seed, uint64_t stream) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  };
  return mix(mix(seed) ^ stream);
}

}  // namespace braid

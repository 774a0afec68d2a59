// A trainer's precision as a LibTorch datatype.
#pragma once

#include <optional>

#include "c10/core/ScalarType.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Returns the datatype of autocast in forward passes; nullopt: no autocast.
inline std::optional<c10::ScalarType> AutocastType(Precision precision) {
  switch (precision) {
    case Precision::kBfloat16:
      return c10::kBFloat16;
    case Precision::kFloat16:
      return c10::kHalf;
    case Precision::kModel:
      break;
  }
  return std::nullopt;
}

}  // namespace braid

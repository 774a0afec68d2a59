// Conversion between element types.
#pragma once

#include <cstddef>
#include <optional>

#include "server/base/data_type.h"

namespace braid {

// Converts `count` elements as x.to(type) * scale does in PyTorch, except that a value that `to`
// cannot represent is an error: a fraction, NaN or a value out of range for an integer type. BOOL
// takes 0 and 1. `scale` must be 1 unless `to` is a floating-point type. Neither pointer needs to
// be aligned. Returns nullopt, or the index of the first element that `to` cannot represent.
std::optional<size_t> ConvertElements(DataType from, const void* source, DataType to, double scale,
                                      size_t count, void* target);

}  // namespace braid

// Columns whose rows are bytes, such as images and texts, or lists of numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "arrow/type_fwd.h"

namespace braid {

// Returns true for binary and string columns, dictionaries of them, and structs with a binary field
// "bytes", as Hugging Face's datasets write images.
bool HoldsBytes(const arrow::DataType& type);

// True for lists of varying length whose elements are numbers, but not booleans, or fixed-size
// lists of them.
bool HoldsLists(const arrow::DataType& type);

// Returns the bytes of a row, which the array owns; nullopt for a null, and for a list with a null.
// Requires an array whose type HoldsBytes() or HoldsLists() accepts.
std::optional<absl::string_view> BytesOfRow(const arrow::Array& array, int64_t row);

}  // namespace braid

// Decoder of lists of different lengths, which are padded.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/data_type.h"
#include "server/base/row_type.h"
#include "server/decode/decode_spec.h"
#include "server/decode/decoder.h"

namespace braid {

// Returns a decoder whose rows have the bytes of the elements of a list, with the outputs
//   "":         `row`, whose first dim is kUnknownDim
//   spec.mask:  1 for elements and 0 for padding, `mask` of shape [kUnknownDim]; absent if it is
//               empty
//
// Rows are padded at their end to the longest row of the call, rounded up to a multiple of
// spec.multiple. Rows without elements are all padding.
//
// Requires a valid `spec`, see ParsePadSpec(). INVALID_ARGUMENT, naming the field, if spec.value is
// not a value of row.type, or 1 is not one of `mask`. FP16 and BF16 have only 0 here.
absl::StatusOr<std::shared_ptr<const Decoder>> MakePadDecoder(const PadSpec& spec,
                                                              const RowType& row, DataType mask,
                                                              absl::string_view field);

}  // namespace braid

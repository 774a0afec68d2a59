// Decoder of texts to token IDs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/decode/decode_spec.h"
#include "server/decode/decoder.h"

namespace braid {

// Returns a decoder with the outputs
//   "":         token IDs, INT64 of shape [max_length] if spec.pad_to_max_length, else of shape
//               [kUnknownDim]
//   spec.mask:  1 for tokens and 0 for padding, of the same type and shape; absent if it is empty
//
// Rows are padded to max_length, or to the longest row of the call. An empty text that has no
// special tokens is all padding. If a call has only such rows, they get one token of padding.
// Padding is on the right, or on the left if the tokenizer's file says so.
//
// Texts are converted as by Hugging Face's `tokenizers`. The lengths for truncation and padding in
// the tokenizer's file are ignored; its sides and padding token are used.
//
// Decode() returns INVALID_ARGUMENT for a row that is not UTF-8, or that has more than max_length
// tokens if spec.truncate is false.
//
// Requires a valid `spec`, see CheckDecodeSpec(). INVALID_ARGUMENT, naming the field, for a file
// that is not a tokenizer, and a max_length below the number of special tokens. NOT_FOUND if no
// directory has the file.
absl::StatusOr<std::shared_ptr<const Decoder>> MakeTextDecoder(
    const TextSpec& spec, const std::vector<std::string>& directories, absl::string_view field);

}  // namespace braid

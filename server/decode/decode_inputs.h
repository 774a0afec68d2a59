// Decodes the encoded inputs of a request.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/decode/decode_spec.h"
#include "server/decode/decode_threads.h"
#include "server/decode/decoder.h"

namespace braid {

// Rows of one input of a request, such as JPEG files.
struct EncodedInput {
  // Name of the input of the model.
  std::string name;
  std::shared_ptr<const Decoder> decoder;
  // At least one. Numbered from 0.
  std::vector<EncodedRow> rows;
  // Keeps the bytes of the rows alive. Null: the caller does.
  std::shared_ptr<const void> owner;
};

// Returns an upper bound for the bytes that decoding `input` on `threads` threads takes: its
// tensors and the working memory of tokenizers. Does not count the pixels of images, which
// ImageSpec::max_pixels limits. spec: that of the input's decoder.
size_t DecodingBytes(const EncodedInput& input, const DecodeSpec& spec, int threads);

struct DecodedInputs {
  // In the order of the encoded inputs, with their names.
  std::vector<HostTensor> tensors;
  // Other inputs of the model that the decoders fill, such as masks.
  std::vector<HostTensor> masks;
  // Time from the start of the first row to the end of the last one.
  absl::Duration duration;
  // Sum of the times that threads spent on decoding.
  absl::Duration busy;
};

// Called once, on a decode thread. The encoded rows are not read afterwards.
using InputsDecoded = absl::AnyInvocable<void(absl::StatusOr<DecodedInputs>)>;
// Called before each part of the work; an error ends the work. Called from several threads at once.
using CheckBeforeDecode = absl::AnyInvocable<absl::Status() const>;

// Decodes at least one input and passes the tensors to `done`. Rows whose
// tensors have a fixed shape are decoded in parallel. The rows of other inputs, such as texts that
// are padded to the longest one, are decoded by one thread. `threads` outlives the call of `done`.
// Does not block.
//
// `done` gets the error of `check`, or INVALID_ARGUMENT, naming input and row, for a row that
// cannot be decoded. RESOURCE_EXHAUSTED, without calling `done`, if memory runs out.
absl::Status DecodeInputs(DecodeThreads* threads, std::vector<EncodedInput> inputs,
                          CheckBeforeDecode check, InputsDecoded done);

}  // namespace braid

// Decoders, which turn encoded rows, such as JPEG files and texts, into tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/base/host_tensor.h"
#include "server/base/row_type.h"
#include "server/decode/decode_spec.h"

namespace braid {

// `seed`, `epoch` and the row determine random transforms.
struct DecodeOptions {
  uint64_t seed = 0;
  int64_t epoch = 0;
  // Limit on the bytes of the tensors of a call whose shape is unknown before it.
  size_t max_bytes = std::numeric_limits<size_t>::max();
};

struct EncodedRow {
  absl::string_view bytes;
  // Number of the row in the dataset or request, for errors and random transforms.
  int64_t row = 0;
};

// A row that could not be decoded. `index` is its position in the call's rows.
struct UnreadableRow {
  int64_t index = 0;
  absl::Status status;
};

// Thread-safe. Decodes on the calling thread.
class Decoder {
 public:
  // A tensor that Decode() returns.
  struct Output {
    // Empty: the input that is decoded. Else another input of the model, such as a mask.
    std::string input;
    RowType row;
  };

  virtual ~Decoder() = default;

  virtual const std::vector<Output>& outputs() const = 0;
  // True if rows have the elements of lists of numbers. False: they are encoded, such as images.
  virtual bool takes_lists() const { return false; }

  // Decodes rows to one tensor per output, named by Output::input, with dim 0 = rows.
  // INVALID_ARGUMENT names the row that is damaged, too large, or does not fit. If
  // `unreadable` is not null, such rows are appended to it and left out of the tensors, which may
  // then have no rows. RESOURCE_EXHAUSTED, before memory is taken, names the longest row if the
  // tensors would exceed options.max_bytes.
  virtual absl::StatusOr<std::vector<HostTensor>> Decode(
      absl::Span<const EncodedRow> rows, const DecodeOptions& options,
      std::vector<UnreadableRow>* unreadable = nullptr) const = 0;
};

// Makes the decoder of a specification. Paths of tokenizers are relative to the first of
// `directories` that has the file. INVALID_ARGUMENT names the field, starting with `field`;
// NOT_FOUND for a missing file.
absl::StatusOr<std::shared_ptr<const Decoder>> MakeDecoder(
    const DecodeSpec& spec, const std::vector<std::string>& directories, absl::string_view field);

}  // namespace braid

#include "server/decode/decode_inputs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "server/base/row_type.h"
#include "server/base/status.h"

namespace braid {
namespace {

// Upper limit of sizes, to prevent overflow of their sums.
constexpr size_t kMaxBytes = size_t{1} << 62;
// Tokens that a tokenizer may add to a text.
constexpr size_t kSpecialTokens = 16;
// Memory of a tokenizer per byte of the text that it works on. 290 were measured.
constexpr size_t kTokenizerBytes = 512;
// Rows that a thread decodes before it turns to another request.
constexpr int64_t kMaxPartRows = 8;

size_t Multiply(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMaxBytes : std::min(product, kMaxBytes);
}

size_t LongestRow(const EncodedInput& input) {
  size_t longest = 0;
  for (const EncodedRow& row : input.rows) {
    longest = std::max(longest, row.bytes.size());
  }
  return longest;
}

// Returns the most tokens that a text of `bytes` bytes can have.
size_t MaxTokens(size_t bytes, const TextSpec& spec) {
  const size_t tokens = bytes + kSpecialTokens;  // Each of the others has at least one byte.
  return spec.max_length > 0 ? std::min(tokens, static_cast<size_t>(spec.max_length)) : tokens;
}

bool IsFixed(const RowType& row) {
  return std::find(row.shape.begin(), row.shape.end(), kUnknownDim) == row.shape.end();
}

bool HasFixedRows(const Decoder& decoder) {
  return std::all_of(decoder.outputs().begin(), decoder.outputs().end(),
                     [](const Decoder::Output& output) { return IsFixed(output.row); });
}

// A tensor whose rows are written by several threads.
struct WholeTensor {
  HostTensor tensor;
  char* bytes = nullptr;  // of the tensor; null: not allocated here
};

// Allocates `rows` rows without values. RESOURCE_EXHAUSTED if memory runs out.
absl::StatusOr<WholeTensor> Allocate(const RowType& row, int64_t rows) {
  WholeTensor whole;
  whole.tensor.type = row.type;
  whole.tensor.shape = {rows};
  whole.tensor.shape.insert(whole.tensor.shape.end(), row.shape.begin(), row.shape.end());
  const std::optional<size_t> bytes = BytesOf(row.type, whole.tensor.shape);
  const std::shared_ptr<char[]> room(bytes ? new (std::nothrow) char[*bytes] : nullptr);
  if (room == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: cannot hold decoded rows of ",
                                                     ShapeString(whole.tensor.shape)));
  }
  whole.bytes = room.get();
  whole.tensor.bytes = *bytes;
  whole.tensor.data = room.get();
  whole.tensor.owner = room;
  return whole;
}

// Work on one request. Thread-safe.
class DecodeWork {
 public:
  DecodeWork(std::vector<EncodedInput> inputs, CheckBeforeDecode check, InputsDecoded done)
      : inputs_(std::move(inputs)), check_(std::move(check)), done_(std::move(done)) {
    tensors_.resize(inputs_.size());
  }

  // Divides the work for `threads` threads. RESOURCE_EXHAUSTED if memory runs out.
  absl::Status Divide(int threads) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const auto rows = static_cast<int64_t>(inputs_[i].rows.size());
      const bool fixed = HasFixedRows(*inputs_[i].decoder);
      const int64_t share = (rows + threads - 1) / threads;
      const int64_t count = fixed ? std::min(share, kMaxPartRows) : rows;
      for (int64_t start = 0; start < rows; start += count) {
        parts_.push_back({i, start, std::min(count, rows - start)});
      }
      if (count == rows) {
        continue;  // The decoder's tensors are used as they are.
      }
      for (const Decoder::Output& output : inputs_[i].decoder->outputs()) {
        BRAID_ASSIGN_OR_RETURN(WholeTensor whole, Allocate(output.row, rows));
        tensors_[i].push_back(std::move(whole));
      }
    }
    return absl::OkStatus();
  }
  int64_t parts() const { return static_cast<int64_t>(parts_.size()); }

  void Run(int64_t p) ABSL_LOCKS_EXCLUDED(mu_) {
    const Part& part = parts_[static_cast<size_t>(p)];
    const absl::Time start = absl::Now();
    {
      const absl::MutexLock lock(&mu_);
      if (!error_.ok()) {
        return;
      }
      start_ = std::min(start_, start);
    }
    absl::Status status = check_();
    if (status.ok()) {
      status = Decode(part);
    }
    const absl::MutexLock lock(&mu_);
    busy_ += absl::Now() - start;
    // Keeps the error of the first row.
    if (!status.ok() && (error_.ok() || p < error_part_)) {
      error_ = std::move(status);
      error_part_ = p;
    }
  }

  void Finish() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Status error;
    DecodedInputs decoded;
    {
      const absl::MutexLock lock(&mu_);
      error = error_;
      decoded.duration = absl::Now() - start_;
      decoded.busy = busy_;
    }
    if (!error.ok()) {
      done_(std::move(error));
      return;
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const std::vector<Decoder::Output>& outputs = inputs_[i].decoder->outputs();
      for (size_t o = 0; o < outputs.size(); ++o) {
        HostTensor& tensor = tensors_[i][o].tensor;
        const bool own = outputs[o].input.empty();
        tensor.name = own ? inputs_[i].name : outputs[o].input;
        (own ? decoded.tensors : decoded.masks).push_back(std::move(tensor));
      }
    }
    done_(std::move(decoded));
  }

 private:
  // Rows [start, start + count) of an input.
  struct Part {
    size_t input = 0;
    int64_t start = 0;
    int64_t count = 0;
  };

  absl::Status Decode(const Part& part) {
    const EncodedInput& input = inputs_[part.input];
    const auto rows =
        absl::MakeConstSpan(input.rows)
            .subspan(static_cast<size_t>(part.start), static_cast<size_t>(part.count));
    absl::StatusOr<std::vector<HostTensor>> decoded = input.decoder->Decode(rows, DecodeOptions());
    if (!decoded.ok()) {
      return {decoded.status().code(),
              absl::StrCat("input '", input.name, "', ", decoded.status().message())};
    }
    std::vector<WholeTensor>& whole = tensors_[part.input];
    if (whole.empty()) {
      for (HostTensor& tensor : *decoded) {
        whole.push_back({std::move(tensor)});
      }
      return absl::OkStatus();
    }
    for (size_t o = 0; o < whole.size(); ++o) {
      const HostTensor& piece = (*decoded)[o];
      const size_t row_bytes = whole[o].tensor.bytes / input.rows.size();
      std::memcpy(whole[o].bytes + static_cast<size_t>(part.start) * row_bytes, piece.data,
                  piece.bytes);
    }
    return absl::OkStatus();
  }

  // Constant after Divide().
  const std::vector<EncodedInput> inputs_;
  const CheckBeforeDecode check_;
  std::vector<Part> parts_;

  // Per input, the tensors of its decoder's outputs. A part writes its own rows only.
  std::vector<std::vector<WholeTensor>> tensors_;
  InputsDecoded done_;  // used in Finish() only

  absl::Mutex mu_;
  absl::Time start_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Duration busy_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  int64_t error_part_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

size_t DecodingBytes(const EncodedInput& input, const DecodeSpec& spec, int threads) {
  const auto* const text = std::get_if<TextSpec>(&spec);
  const size_t longest = text == nullptr ? 0 : LongestRow(input);
  const size_t tokens = text == nullptr ? 1 : MaxTokens(longest, *text);
  size_t row_bytes = 0;
  for (const Decoder::Output& output : input.decoder->outputs()) {
    size_t bytes = DataTypeSize(output.row.type);
    for (const int64_t dim : output.row.shape) {
      // Only texts have rows of unknown size.
      bytes = Multiply(bytes, dim == kUnknownDim ? tokens : static_cast<size_t>(dim));
    }
    row_bytes = std::min(row_bytes + bytes, kMaxBytes);
  }
  const size_t rows = input.rows.size();
  const size_t at_once =
      HasFixedRows(*input.decoder) ? std::min(rows, static_cast<size_t>(threads)) : 1;
  const size_t working = Multiply(Multiply(longest, kTokenizerBytes), at_once);
  return std::min(Multiply(row_bytes, rows) + working, kMaxBytes);
}

absl::Status DecodeInputs(DecodeThreads* threads, std::vector<EncodedInput> inputs,
                          CheckBeforeDecode check, InputsDecoded done) {
  const auto work =
      std::make_shared<DecodeWork>(std::move(inputs), std::move(check), std::move(done));
  BRAID_RETURN_IF_ERROR(work->Divide(threads->count()));
  threads->Post(
      work->parts(), [work](int64_t part) { work->Run(part); }, [work] { work->Finish(); });
  return absl::OkStatus();
}

}  // namespace braid

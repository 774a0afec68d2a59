// Decoder of bytes for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/data/column.h"
#include "server/decode/decoder.h"
#include "tests/fakes/host_tensors.h"

namespace braid {

// Decodes a row to its bytes, INT64, and pads it with 0 to the longest row of the call. Rows that
// start with '!' are unreadable. Immutable. Thread-safe.
class ByteDecoder final : public Decoder {
 public:
  ByteDecoder() : outputs_{{"", {DataType::kInt64, {kUnknownDim}}}} {}

  const std::vector<Output>& outputs() const override { return outputs_; }

  absl::StatusOr<std::vector<HostTensor>> Decode(
      absl::Span<const EncodedRow> rows, const DecodeOptions& /*options*/,
      std::vector<UnreadableRow>* unreadable) const override {
    std::vector<absl::string_view> texts;
    size_t width = 1;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].bytes.empty() || rows[i].bytes.front() != '!') {
        texts.push_back(rows[i].bytes);
        width = std::max(width, rows[i].bytes.size());
        continue;
      }
      absl::Status error =
          absl::InvalidArgumentError(absl::StrCat("row ", rows[i].row, ": starts with '!'"));
      if (unreadable == nullptr) {
        return error;
      }
      unreadable->push_back({static_cast<int64_t>(i), std::move(error)});
    }
    std::vector<int64_t> values(texts.size() * width);
    for (size_t i = 0; i < texts.size(); ++i) {
      std::ranges::copy(texts[i], values.begin() + static_cast<std::ptrdiff_t>(i * width));
    }
    return std::vector<HostTensor>{MakeHost<int64_t>(
        "", {static_cast<int64_t>(texts.size()), static_cast<int64_t>(width)}, values)};
  }

 private:
  std::vector<Output> outputs_;
};

}  // namespace braid

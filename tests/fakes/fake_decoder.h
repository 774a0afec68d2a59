// A decoder for tests, whose rows are the bytes that it gets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/row_type.h"
#include "server/decode/decoder.h"

namespace braid {

// Returns a row's bytes as UINT8, of shape [width]. Rejects other lengths. With kUnknownDim, pads
// rows with '.' to the longest one. `mask`: name of an output with 1 for each byte; empty: none.
class FakeDecoder final : public Decoder {
 public:
  using OnDecode = std::function<void(absl::Span<const EncodedRow>)>;

  explicit FakeDecoder(int64_t width, const std::string& mask = "", OnDecode on_decode = nullptr)
      : width_(width), on_decode_(std::move(on_decode)) {
    outputs_.push_back({"", {DataType::kUint8, {width}}});
    if (!mask.empty()) {
      outputs_.push_back({mask, {DataType::kUint8, {width}}});
    }
  }

  const std::vector<Output>& outputs() const override { return outputs_; }

  absl::StatusOr<std::vector<HostTensor>> Decode(absl::Span<const EncodedRow> rows,
                                                 const DecodeOptions& /*options*/,
                                                 std::vector<UnreadableRow>*) const override {
    if (on_decode_ != nullptr) {
      on_decode_(rows);
    }
    size_t width = 0;
    for (const EncodedRow& row : rows) {
      if (width_ != kUnknownDim && row.bytes.size() != static_cast<size_t>(width_)) {
        return absl::InvalidArgumentError(
            absl::StrCat("row ", row.row, ": ", row.bytes.size(), " bytes"));
      }
      width = std::max(width, row.bytes.size());
    }
    std::vector<HostTensor> tensors;
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const auto room = std::make_shared<std::string>(rows.size() * width, o == 0 ? '.' : '\0');
      for (size_t r = 0; r < rows.size(); ++r) {
        const size_t size = rows[r].bytes.size();
        room->replace(r * width, size, o == 0 ? std::string(rows[r].bytes) : std::string(size, 1));
      }
      tensors.push_back({.name = outputs_[o].input,
                         .type = DataType::kUint8,
                         .shape = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(width)},
                         .data = room->data(),
                         .bytes = room->size(),
                         .owner = room});
    }
    return tensors;
  }

 private:
  const int64_t width_;
  const OnDecode on_decode_;
  std::vector<Output> outputs_;
};

}  // namespace braid

// Decoder of decimal numbers for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/decode/decoder.h"
#include "tests/fakes/host_tensors.h"

namespace braid {

// Decodes "7" in row 3 to [7, 3, seed + epoch], FP32. Other texts are unreadable. With a mask, each
// row also has a tensor `mask`, [1], INT64. Immutable. Thread-safe.
class NumberDecoder final : public Decoder {
 public:
  explicit NumberDecoder(const std::string& mask = "") {
    outputs_.push_back({"", {DataType::kFp32, {3}}});
    if (!mask.empty()) {
      outputs_.push_back({mask, {DataType::kInt64, {1}}});
    }
  }

  const std::vector<Output>& outputs() const override { return outputs_; }

  absl::StatusOr<std::vector<HostTensor>> Decode(
      absl::Span<const EncodedRow> rows, const DecodeOptions& options,
      std::vector<UnreadableRow>* unreadable) const override {
    std::vector<float> values;
    for (size_t i = 0; i < rows.size(); ++i) {
      float value = 0;
      if (!absl::SimpleAtof(rows[i].bytes, &value)) {
        absl::Status error = absl::InvalidArgumentError(
            absl::StrCat("row ", rows[i].row, ": not a number (expected one)"));
        if (unreadable == nullptr) {
          return error;
        }
        unreadable->push_back({static_cast<int64_t>(i), std::move(error)});
        continue;
      }
      values.push_back(value);
      values.push_back(static_cast<float>(rows[i].row));
      values.push_back(static_cast<float>(options.seed) + static_cast<float>(options.epoch));
    }
    const auto count = static_cast<int64_t>(values.size() / 3);
    std::vector<HostTensor> tensors = {MakeHost<float>("", {count, 3}, values)};
    if (outputs_.size() > 1) {
      tensors.push_back(MakeHost<int64_t>(outputs_[1].input, {count, 1},
                                          std::vector<int64_t>(static_cast<size_t>(count), 1)));
    }
    return tensors;
  }

 private:
  std::vector<Output> outputs_;
};

}  // namespace braid

#include "server/decode/pad_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"

namespace braid {
namespace {

template <typename Element>
std::optional<std::string> BytesOfElement(double value) {
  if constexpr (std::numeric_limits<Element>::is_integer) {
    const auto min = static_cast<double>(std::numeric_limits<Element>::min());
    const double end = std::ldexp(1.0, std::numeric_limits<Element>::digits);
    if (!(value >= min && value < end) || value != std::trunc(value)) {
      return std::nullopt;
    }
  }
  const auto element = static_cast<Element>(value);
  std::string bytes(sizeof(element), '\0');
  std::memcpy(bytes.data(), &element, sizeof(element));
  return bytes;
}

// Returns the element's bytes; nullopt if the type does not have the value.
std::optional<std::string> BytesOfValue(DataType type, double value) {
  switch (type) {
    case DataType::kBool:
      return BytesOfElement<bool>(value);
    case DataType::kUint8:
      return BytesOfElement<uint8_t>(value);
    case DataType::kUint16:
      return BytesOfElement<uint16_t>(value);
    case DataType::kUint32:
      return BytesOfElement<uint32_t>(value);
    case DataType::kUint64:
      return BytesOfElement<uint64_t>(value);
    case DataType::kInt8:
      return BytesOfElement<int8_t>(value);
    case DataType::kInt16:
      return BytesOfElement<int16_t>(value);
    case DataType::kInt32:
      return BytesOfElement<int32_t>(value);
    case DataType::kInt64:
      return BytesOfElement<int64_t>(value);
    case DataType::kFp16:
    case DataType::kBf16:
      return value == 0 ? std::optional<std::string>(std::string(2, '\0')) : std::nullopt;
    case DataType::kFp32:
      return BytesOfElement<float>(value);
    case DataType::kFp64:
      return BytesOfElement<double>(value);
  }
  return std::nullopt;
}

void Fill(const std::string& element, size_t count, char* target) {
  for (size_t i = 0; i < count; ++i) {
    std::copy(element.begin(), element.end(), target + i * element.size());
  }
}

class PadDecoder final : public Decoder {
 public:
  // padding, one: bytes of the elements that fill rows, and of 1 in the mask.
  PadDecoder(const PadSpec& spec, const RowType& row, DataType mask, std::string padding,
             std::string one)
      : multiple_(static_cast<size_t>(spec.multiple)),
        padding_(std::move(padding)),
        one_(std::move(one)),
        step_elements_(1) {
    for (size_t d = 1; d < row.shape.size(); ++d) {
      step_elements_ *= static_cast<size_t>(row.shape[d]);
    }
    outputs_.push_back({.input = "", .row = row});
    if (!spec.mask.empty()) {
      outputs_.push_back({.input = spec.mask, .row = {mask, {kUnknownDim}}});
    }
  }

  const std::vector<Output>& outputs() const override { return outputs_; }
  bool takes_lists() const override { return true; }

  absl::StatusOr<std::vector<HostTensor>> Decode(
      absl::Span<const EncodedRow> rows, const DecodeOptions& options,
      std::vector<UnreadableRow>* /*unreadable*/) const override {
    size_t width = 1;
    int64_t longest = 0;
    for (const EncodedRow& row : rows) {
      if (LengthOf(row) > width) {
        width = LengthOf(row);
        longest = row.row;
      }
    }
    width = (width + multiple_ - 1) / multiple_ * multiple_;
    const size_t row_bytes = width * (step_bytes() + (outputs_.size() > 1 ? one_.size() : 0));
    if (row_bytes > 0 && rows.size() > options.max_bytes / row_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "row ", longest, ": padding ", rows.size(), " rows to ", width, " elements takes ",
          row_bytes, " bytes per row (expected at most ", options.max_bytes,
          " bytes per batch; shorten the row, or use a smaller batch_size)"));
    }
    return Pad(rows, width);
  }

 private:
  // Bytes of one step along dim 0 of a row.
  size_t step_bytes() const { return step_elements_ * padding_.size(); }
  size_t LengthOf(const EncodedRow& row) const {
    return step_bytes() == 0 ? 0 : row.bytes.size() / step_bytes();
  }

  absl::StatusOr<std::vector<HostTensor>> Pad(absl::Span<const EncodedRow> rows,
                                              size_t width) const {
    std::vector<HostTensor> tensors;
    BRAID_ASSIGN_OR_RETURN(char* const values, Add(outputs_.front(), rows.size(), width, &tensors));
    for (size_t r = 0; r < rows.size(); ++r) {
      char* const row = values + r * width * step_bytes();
      const size_t length = LengthOf(rows[r]);
      std::copy_n(rows[r].bytes.data(), length * step_bytes(), row);
      Fill(padding_, (width - length) * step_elements_, row + length * step_bytes());
    }
    if (outputs_.size() > 1) {
      BRAID_ASSIGN_OR_RETURN(char* const mask, Add(outputs_.back(), rows.size(), width, &tensors));
      for (size_t r = 0; r < rows.size(); ++r) {
        Fill(one_, LengthOf(rows[r]), mask + r * width * one_.size());
      }
    }
    return tensors;
  }

  // Adds a tensor of zeros and returns its bytes.
  static absl::StatusOr<char*> Add(const Output& output, size_t rows, size_t width,
                                   std::vector<HostTensor>* tensors) {
    HostTensor tensor;
    tensor.name = output.input;
    tensor.type = output.row.type;
    tensor.shape = output.row.shape;
    tensor.shape.front() = static_cast<int64_t>(width);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(rows));
    const std::optional<size_t> bytes = BytesOf(tensor.type, tensor.shape);
    const std::shared_ptr<char[]> memory(bytes ? new (std::nothrow) char[*bytes]() : nullptr);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for padded rows of shape ", ShapeString(tensor.shape)));
    }
    tensor.data = memory.get();
    tensor.bytes = *bytes;
    tensor.owner = memory;
    tensors->push_back(std::move(tensor));
    return memory.get();
  }

  // Constant after construction.
  const size_t multiple_;
  const std::string padding_;
  const std::string one_;
  size_t step_elements_;
  std::vector<Output> outputs_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Decoder>> MakePadDecoder(const PadSpec& spec,
                                                              const RowType& row, DataType mask,
                                                              absl::string_view field) {
  std::optional<std::string> padding = BytesOfValue(row.type, spec.value);
  if (!padding) {
    return InvalidField(absl::StrCat(field, ".value"),
                        absl::StrCat(spec.value, " (expected a value of ", DataTypeName(row.type),
                                     ", the input's datatype)"));
  }
  std::optional<std::string> one = BytesOfValue(mask, 1);
  if (!one) {
    return InvalidField(absl::StrCat(field, ".mask"),
                        absl::StrCat("input '", spec.mask, "' is ", DataTypeName(mask),
                                     " (expected an integer type, BOOL, FP32 or FP64)"));
  }
  return std::make_shared<const PadDecoder>(spec, row, mask, *std::move(padding), *std::move(one));
}

}  // namespace braid

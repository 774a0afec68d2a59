#include "server/decode/image/image_decoder.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/core/InferenceMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/decode/image/image_codec.h"
#include "server/decode/image/image_row.h"
#include "server/decode/image/image_transforms.h"

namespace braid {
namespace {

// Returns nullptr if there is no memory. The pages of a batch are new each time, and faults on
// small pages would take a sixth of the time of decoding.
std::shared_ptr<void> Allocate(size_t bytes) {
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t page = bytes < kLargePage ? 64 : kLargePage;
  const size_t size = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
  std::shared_ptr<void> memory(std::aligned_alloc(page, size), std::free);
  if (memory != nullptr && page == kLargePage) {
    madvise(memory.get(), size, MADV_HUGEPAGE);  // only advice, so errors do not matter
  }
  return memory;
}

class ImageDecoder final : public Decoder {
 public:
  ImageDecoder(const ImageSpec& spec, RowType row)
      : codec_({.channels = spec.channels, .max_pixels = spec.max_pixels}),
        transforms_(spec),
        outputs_({{.input = "", .row = std::move(row)}}) {}

  const std::vector<Output>& outputs() const override { return outputs_; }

  absl::StatusOr<std::vector<HostTensor>> Decode(
      absl::Span<const EncodedRow> rows, const DecodeOptions& options,
      std::vector<UnreadableRow>* unreadable) const override {
    BRAID_ASSIGN_OR_RETURN(HostTensor batch, NewBatch(static_cast<int64_t>(rows.size())));
    const size_t row_bytes = rows.empty() ? 0 : batch.bytes / rows.size();
    Pixels pixels;
    size_t decoded = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      absl::Status status = DecodeRow(rows[i], options, pixels, Row(batch, decoded * row_bytes));
      if (status.ok()) {
        ++decoded;
      } else if (unreadable != nullptr && absl::IsInvalidArgument(status)) {
        unreadable->push_back({static_cast<int64_t>(i), std::move(status)});
      } else {
        return status;
      }
    }
    batch.shape.front() = static_cast<int64_t>(decoded);
    batch.bytes = decoded * row_bytes;
    return std::vector<HostTensor>{std::move(batch)};
  }

 private:
  // Returns a tensor whose values are undefined.
  absl::StatusOr<HostTensor> NewBatch(int64_t rows) const {
    const RowType& row = outputs_.front().row;
    HostTensor batch;
    batch.type = row.type;
    batch.shape = {rows};
    batch.shape.insert(batch.shape.end(), row.shape.begin(), row.shape.end());
    const std::optional<size_t> bytes = BytesOf(batch.type, batch.shape);
    std::shared_ptr<void> memory = bytes.has_value() ? Allocate(*bytes) : nullptr;
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for images of shape ", ShapeString(batch.shape)));
    }
    batch.data = memory.get();
    batch.bytes = *bytes;
    batch.owner = std::move(memory);
    return batch;
  }

  static void* Row(const HostTensor& batch, size_t offset) {
    // Nobody else has the new batch yet.
    return static_cast<std::byte*>(const_cast<void*>(batch.data)) + offset;
  }

  absl::Status DecodeRow(const EncodedRow& row, const DecodeOptions& options, Pixels& pixels,
                         void* out) const {
    const absl::Status status = [&]() -> absl::Status {
      try {
        const c10::InferenceMode inference;
        BRAID_RETURN_IF_ERROR(DecodeImage(row.bytes, codec_, pixels));
        return transforms_.Apply(pixels, options, row.row, out);
      } catch (const std::bad_alloc&) {
        return absl::ResourceExhaustedError("no memory to decode the image");
      } catch (const std::exception& error) {
        return absl::InternalError(FirstLine(error.what()));
      }
    }();
    return status.ok()
               ? status
               : absl::Status(status.code(), absl::StrCat("row ", row.row, ": ", status.message()));
  }

  const ImageCodecOptions codec_;
  const ImageTransforms transforms_;
  const std::vector<Output> outputs_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Decoder>> MakeImageDecoder(const ImageSpec& spec,
                                                                absl::string_view field) {
  BRAID_ASSIGN_OR_RETURN(RowType row, ImageRow(spec, absl::StrCat(field, ".image")));
  return std::make_shared<const ImageDecoder>(spec, std::move(row));
}

}  // namespace braid

#include "server/data/encoded/encoded_values.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {

EncodedValues::ByteRange EncodedValues::ByteRangeOf(int64_t row) const {
  ByteRange range;
  std::memcpy(&range, byte_ranges_->data() + first_ + static_cast<size_t>(row) * stride_,
              sizeof(range));
  return range;
}

absl::StatusOr<absl::string_view> EncodedValues::ValueOf(int64_t row) const {
  const ByteRange range = ByteRangeOf(row);
  if (range.length == ByteRange::kNull) {
    return absl::InvalidArgumentError("null (expected a value)");
  }
  if (range.begin > values_->bytes() || range.length > values_->bytes() - range.begin) {
    return absl::DataLossError(absl::StrCat("a value ends at byte ", range.begin + range.length,
                                            " of the packed rows (", "expected at most ",
                                            values_->bytes(), ")"));
  }
  return absl::string_view(values_->data() + range.begin, range.length);
}

absl::StatusOr<absl::string_view> EncodedValues::Read(int64_t row, std::string* storage) const {
  BRAID_ASSIGN_OR_RETURN(const absl::string_view value, ValueOf(row));
  if (files_ == nullptr) {
    return value;
  }
  BRAID_ASSIGN_OR_RETURN(*storage, files_->Read(value));
  return absl::string_view(*storage);
}

std::string EncodedValues::Describe(int64_t row) const {
  const absl::StatusOr<absl::string_view> value = ValueOf(row);
  return files_ == nullptr || !value.ok() ? "" : InFile(*value);
}

std::optional<int64_t> EncodedValues::Length(int64_t row) const {
  if (files_ != nullptr) {
    return std::nullopt;
  }
  const ByteRange range = ByteRangeOf(row);
  return range.length == ByteRange::kNull ? 0 : static_cast<int64_t>(range.length);
}

absl::Status EncodedValues::Check() const {
  BRAID_RETURN_IF_ERROR(byte_ranges_->Check());
  return values_->Check();
}

std::string InFile(absl::string_view path) {
  constexpr size_t kMaxShownBytes = 512;
  return absl::StrCat(" (file '", Excerpt(path, kMaxShownBytes), "')");
}

}  // namespace braid

#include "client/cpp/state_dict.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace braid::client {
namespace {

// Maximum number of bytes reserved before the data arrives. Limits the memory that a wrong shape
// from the server can allocate.
constexpr int64_t kMaxReserve = int64_t{64} << 20;

}  // namespace

absl::Status StateDictAssembler::Begin(const v1::GetStateDictResponse& piece) {
  if (missing_ != 0) {
    return absl::InternalError(absl::StrCat("state dict: \"", piece.name(), "\" begins while \"",
                                            entries_.back().tensor.name, "\" lacks ", missing_,
                                            " bytes"));
  }
  absl::StatusOr<int64_t> bytes =
      ByteCount(piece.datatype(), absl::MakeConstSpan(piece.shape().data(), piece.shape_size()));
  if (!bytes.ok()) {
    return absl::InternalError(
        absl::StrCat("state dict: \"", piece.name(), "\": ", bytes.status().message()));
  }
  StateEntry& entry = entries_.emplace_back();
  entry.tensor.name = piece.name();
  entry.tensor.datatype = piece.datatype();
  entry.tensor.shape.assign(piece.shape().begin(), piece.shape().end());
  entry.tensor.data.reserve(static_cast<size_t>(std::min(*bytes, kMaxReserve)));
  entry.parameter = piece.parameter();
  missing_ = *bytes;
  return absl::OkStatus();
}

absl::Status StateDictAssembler::Add(const v1::GetStateDictResponse& piece) {
  const bool continues = piece.offset() != 0;
  if (!continues) {
    if (absl::Status status = Begin(piece); !status.ok()) return status;
  }
  const bool same = !entries_.empty() && entries_.back().tensor.name == piece.name();
  const int64_t have = same ? static_cast<int64_t>(entries_.back().tensor.data.size()) : 0;
  const int64_t size = static_cast<int64_t>(piece.data().size());
  if (!same || piece.offset() != have || size > missing_ || (continues && size == 0)) {
    return absl::InternalError(absl::StrCat(
        "state dict: ", size, " bytes at offset ", piece.offset(), " of \"", piece.name(),
        "\", which has ", have, " bytes and lacks ", same ? missing_ : 0));
  }
  entries_.back().tensor.data += piece.data();
  missing_ -= size;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StateEntry>> StateDictAssembler::Finish() {
  std::vector<StateEntry> entries = std::exchange(entries_, {});
  if (const int64_t missing = std::exchange(missing_, 0); missing != 0) {
    return absl::InternalError(absl::StrCat("state dict ends while \"", entries.back().tensor.name,
                                            "\" lacks ", missing, " bytes"));
  }
  return entries;
}

}  // namespace braid::client

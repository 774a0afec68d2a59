#include "server/data/encoded/decode_rows.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/data/tensor_conversion.h"

namespace braid {
namespace {

// Returns true for errors that other rows do not have.
bool ConcernsRow(const absl::Status& error) {
  return absl::IsInvalidArgument(error) || absl::IsNotFound(error) ||
         absl::IsPermissionDenied(error);
}

// Appends the row to `skipped`, or returns the error that names it.
absl::Status Skip(const EncodedColumn& column, int64_t row, const absl::Status& error,
                  std::vector<SkippedRow>* skipped) {
  const std::string number = absl::StrCat("row ", row, ": ");
  const absl::string_view text = error.message();
  absl::Status named(
      error.code(),
      absl::StrCat("column '", column.name, "', ",
                   absl::StartsWith(text, number) ? "" : number,  // some decoders name the row
                   text, column.describe(row)));
  if (skipped == nullptr || !ConcernsRow(error)) {
    return named;
  }
  skipped->push_back({row, std::move(named)});
  return absl::OkStatus();
}

// Decodes one column, as DecodeColumns() does.
absl::StatusOr<std::vector<HostTensor>> DecodeColumn(const EncodedColumn& column,
                                                     const DecodeOptions& options,
                                                     std::vector<int64_t>* rows,
                                                     std::vector<SkippedRow>* skipped) {
  std::vector<std::string> storage(rows->size());
  std::vector<EncodedRow> encoded;
  for (size_t i = 0; i < rows->size(); ++i) {
    const int64_t row = (*rows)[i];
    const absl::StatusOr<absl::string_view> bytes = column.read(row, &storage[i]);
    if (bytes.ok()) {
      encoded.push_back({*bytes, row});
    } else {
      BRAID_RETURN_IF_ERROR(Skip(column, row, bytes.status(), skipped));
    }
  }
  rows->clear();
  if (encoded.empty()) {
    return std::vector<HostTensor>();
  }
  std::vector<UnreadableRow> unreadable;
  absl::StatusOr<std::vector<HostTensor>> decoded =
      column.decoder->Decode(encoded, options, &unreadable);
  if (!decoded.ok()) {
    return absl::Status(decoded.status().code(),
                        absl::StrCat("column '", column.name, "': ", decoded.status().message()));
  }
  std::vector<HostTensor> tensors = *std::move(decoded);
  std::vector<bool> readable(encoded.size(), true);
  for (const UnreadableRow& one : unreadable) {
    const auto index = static_cast<size_t>(one.index);
    readable[index] = false;
    BRAID_RETURN_IF_ERROR(Skip(column, encoded[index].row, one.status, skipped));
  }
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (readable[i]) {
      rows->push_back(encoded[i].row);
    }
  }
  for (HostTensor& tensor : tensors) {
    if (tensor.name.empty()) {
      tensor.name = column.tensor;
    }
  }
  return tensors;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<HostTensor>>> DecodeColumns(
    absl::Span<const EncodedColumn> columns, const DecodeOptions& options,
    std::vector<int64_t>* rows, std::vector<SkippedRow>* skipped) {
  std::vector<std::vector<HostTensor>> decoded;
  for (const EncodedColumn& column : columns) {
    const std::vector<int64_t> before = *rows;
    BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors,
                           DecodeColumn(column, options, rows, skipped));
    if (rows->size() < before.size()) {
      const std::vector<int64_t> kept = IndicesOf(*rows, before);
      for (std::vector<HostTensor>& others : decoded) {
        for (HostTensor& other : others) {
          BRAID_ASSIGN_OR_RETURN(other, SelectRows(other, kept));
        }
      }
    }
    decoded.push_back(std::move(tensors));
  }
  return decoded;
}

std::vector<Decoder::Output> TensorsOf(const Decoder& decoder, const std::string& tensor) {
  std::vector<Decoder::Output> outputs = decoder.outputs();
  for (Decoder::Output& output : outputs) {
    if (output.input.empty()) {
      output.input = tensor;
    }
  }
  return outputs;
}

std::vector<int64_t> IndicesOf(absl::Span<const int64_t> kept, absl::Span<const int64_t> all) {
  std::vector<int64_t> indices;
  for (size_t i = 0; i < all.size() && indices.size() < kept.size(); ++i) {
    if (all[i] == kept[indices.size()]) {
      indices.push_back(static_cast<int64_t>(i));
    }
  }
  return indices;
}

absl::StatusOr<HostTensor> SelectRows(const HostTensor& tensor, absl::Span<const int64_t> indices) {
  HostTensor taken = tensor;
  const auto rows = static_cast<size_t>(tensor.rows());
  const size_t row_bytes = rows == 0 ? 0 : tensor.bytes / rows;
  taken.shape.front() = static_cast<int64_t>(indices.size());
  taken.bytes = indices.size() * row_bytes;
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(taken.bytes));
  for (size_t i = 0; i < indices.size(); ++i) {
    std::memcpy(memory.get() + i * row_bytes,
                static_cast<const char*>(tensor.data) + static_cast<size_t>(indices[i]) * row_bytes,
                row_bytes);
  }
  taken.data = memory.get();
  taken.owner = memory;
  return taken;
}

}  // namespace braid

#include "server/data/row_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "server/base/status.h"
#include "server/data/convert_elements.h"
#include "server/data/tensor_conversion.h"

namespace braid {

namespace {

// Bytes of a row, with a guess for sizes that differ between batches.
size_t EstimatedBytes(RowType row) {
  constexpr int64_t kGuess = 512;
  std::ranges::replace(row.shape, kUnknownDim, kGuess);
  return RowBytes(row).value_or(0);
}

}  // namespace

RowStore::RowStore(int64_t rows, std::vector<Field> fields)
    : rows_(rows), fields_(std::move(fields)) {
  for (const Field& field : fields_) {
    const TensorColumn& tensor = field.tensor;
    if (field.encoded == nullptr) {
      tensors_.push_back({tensor.name, {tensor.TargetType(field.stored.type), field.stored.shape}});
      continue;
    }
    const EncodedValues* const values = field.encoded.get();
    encoded_.push_back(
        {tensor.shown_column(), tensor.name, tensor.decoder.get(),
         [values](int64_t row, std::string* storage) { return values->Read(row, storage); },
         [values](int64_t row) { return values->Describe(row); }});
    std::ranges::copy(TensorsOf(*tensor.decoder, tensor.name), std::back_inserter(tensors_));
    if (std::ranges::count(tensor.decoder->outputs().front().row.shape, kUnknownDim) > 0) {
      padded_.push_back(values);
    }
  }
  for (const Decoder::Output& tensor : tensors_) {
    row_bytes_ += EstimatedBytes(tensor.row);
  }
}

int64_t RowStore::PaddedLength(int64_t row) const {
  int64_t length = 0;
  for (const EncodedValues* const values : padded_) {
    length += values->Length(row).value_or(0);
  }
  return length;
}

size_t RowStore::stored_bytes() const {
  std::set<const MappedRange*> ranges;
  size_t bytes = 0;
  for (const Field& field : fields_) {
    if (field.encoded != nullptr) {
      bytes += field.encoded->bytes();
    } else {
      bytes += ranges.insert(field.range.get()).second ? field.range->bytes() : 0;
    }
  }
  return bytes;
}

void RowStore::ExpectRandomAccess() const {
  for (const Field& field : fields_) {
    if (field.encoded != nullptr) {
      field.encoded->ExpectRandomAccess();
    } else {
      field.range->ExpectRandomAccess();
    }
  }
}

absl::StatusOr<std::vector<HostTensor>> RowStore::Gather(absl::Span<const int64_t> rows,
                                                         const DecodeOptions& options,
                                                         std::vector<SkippedRow>* skipped) const {
  std::vector<int64_t> kept(rows.begin(), rows.end());
  BRAID_ASSIGN_OR_RETURN(std::vector<std::vector<HostTensor>> decoded,
                         DecodeColumns(encoded_, options, &kept, skipped));
  std::vector<HostTensor> tensors;
  if (kept.empty()) {
    return tensors;
  }
  auto next = decoded.begin();
  for (const Field& field : fields_) {
    if (field.encoded != nullptr) {
      std::ranges::move(*next++, std::back_inserter(tensors));
      BRAID_RETURN_IF_ERROR(field.encoded->Check());
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(HostTensor tensor, GatherField(field, kept));
    tensors.push_back(std::move(tensor));
  }
  for (const Field& field : fields_) {
    if (field.encoded == nullptr) {
      BRAID_RETURN_IF_ERROR(field.range->Check());
    }
  }
  return tensors;
}

absl::StatusOr<HostTensor> RowStore::GatherField(const Field& field,
                                                 absl::Span<const int64_t> rows) const {
  const DataType type = field.tensor.TargetType(field.stored.type);
  const size_t elements = *RowBytes(field.stored) / DataTypeSize(field.stored.type);
  const size_t target_bytes = elements * DataTypeSize(type);
  HostTensor tensor;
  tensor.name = field.tensor.name;
  tensor.type = type;
  tensor.shape = {static_cast<int64_t>(rows.size())};
  tensor.shape.insert(tensor.shape.end(), field.stored.shape.begin(), field.stored.shape.end());
  tensor.bytes = rows.size() * target_bytes;
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(tensor.bytes));
  for (size_t i = 0; i < rows.size(); ++i) {
    const char* const row = field.first + static_cast<size_t>(rows[i]) * field.stride;
    if (ConvertElements(field.stored.type, row, type, field.tensor.scale, elements,
                        memory.get() + i * target_bytes)
            .has_value()) {
      return InvalidRowValue(field.tensor.columns.front(), field.stored, row, rows[i], type);
    }
  }
  tensor.data = memory.get();
  tensor.owner = memory;
  return tensor;
}

absl::StatusOr<std::shared_ptr<const RowStore>> MapRows(const DataSource& source,
                                                        const std::vector<TensorColumn>& tensors) {
  std::vector<RowStore::Field> fields;
  int64_t rows = 0;
  for (const TensorColumn& tensor : tensors) {
    BRAID_RETURN_IF_ERROR(TensorRowType(source.columns(), tensor).status());
    BRAID_ASSIGN_OR_RETURN(const std::vector<int> indices,
                           ColumnIndices(source.columns(), tensor.columns));
    const auto index = static_cast<size_t>(indices.front());
    RowStore::Field field;
    BRAID_ASSIGN_OR_RETURN(const HostTensor mapped,
                           MapTensor((*source.arrays())[index], &field.range));
    field.tensor = tensor;
    field.stored = RowTypeOf(mapped);
    field.first = static_cast<const char*>(mapped.data);
    field.stride = *RowBytes(field.stored);
    rows = mapped.rows();
    fields.push_back(std::move(field));
  }
  return std::make_shared<RowStore>(rows, std::move(fields));
}

}  // namespace braid

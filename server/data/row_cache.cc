#include "server/data/row_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "arrow/array.h"
#include "arrow/record_batch.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/data/encoded/bytes_column.h"
#include "server/data/encoded/encoded_values.h"
#include "server/data/read_ahead.h"
#include "server/data/tensor_conversion.h"
#include "server/storage/checksum.h"
#include "server/storage/file_error.h"
#include "server/storage/file_sink.h"
#include "server/storage/files.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeader = size_t{1} << 20;
// Part of the keys: files of other versions are not found.
constexpr int kFormatVersion = 1;
constexpr absl::string_view kSuffix = ".rows";
constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);

std::string KeyOf(const DataSource& source, const std::vector<TensorColumn>& tensors) {
  std::string text = absl::StrCat(kFormatVersion, "\n", source.Identity());
  for (const TensorColumn& tensor : tensors) {
    // The name of the tensor does not change the bytes.
    for (const std::string& column : tensor.columns) {
      absl::StrAppend(&text, column.size(), " ", column, " ");
    }
    absl::StrAppend(&text, tensor.type.has_value() ? DataTypeName(*tensor.type) : "", " ",
                    std::bit_cast<uint64_t>(tensor.scale),
                    tensor.decoder == nullptr ? "\n" : " encoded\n");
  }
  return ChecksumOf(text);
}

// Type of EncodedValues::ByteRange in a row.
const RowType& ByteRangeType() {
  static const auto* const kType = new RowType{DataType::kUint64, {2}};
  return *kType;
}

// Bytes of a packed row.
size_t StrideOf(const std::vector<RowType>& fields) {
  size_t stride = 0;
  for (const RowType& field : fields) {
    stride += *RowBytes(field);
  }
  return stride;
}

// Reads the columns of a batch that starts at `row`, without those to decode. Returns the types
// that all columns have when packed.
absl::StatusOr<std::vector<RowType>> ReadColumns(const arrow::RecordBatch& batch,
                                                 const std::vector<TensorColumn>& tensors,
                                                 int64_t row, std::vector<HostTensor>* columns) {
  std::vector<RowType> types;
  for (size_t f = 0; f < tensors.size(); ++f) {
    if (tensors[f].decoder == nullptr) {
      BRAID_ASSIGN_OR_RETURN((*columns)[f], ReadTensor(batch, tensors[f], row));
    }
    types.push_back(tensors[f].decoder == nullptr ? RowTypeOf((*columns)[f]) : ByteRangeType());
  }
  return types;
}

// Checks the type of a batch that starts at `row`. Lists of one batch have the same length, but
// batches may differ.
absl::Status CheckSameType(const TensorColumn& tensor, int64_t row, const RowType& type,
                           const RowType& first) {
  if (type == first) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("column '", tensor.shown_column(), "', row ", row,
                                                 ": ", RowTypeString(type), " (expected ",
                                                 RowTypeString(first), ", as in row 0)"));
}

std::string FormatLength(uint64_t length) {
  std::string bytes(kLengthBytes, '\0');
  for (size_t b = 0; b < kLengthBytes; ++b) {
    bytes[b] = static_cast<char>(length >> (8 * b));
  }
  return bytes;
}

// Requires kLengthBytes bytes.
uint64_t ParseLength(absl::string_view bytes) {
  uint64_t length = 0;
  for (size_t b = kLengthBytes; b-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(bytes[b]);
  }
  return length;
}

// Formats the length and the header.
std::string HeadOf(const std::vector<RowType>& fields, const std::vector<TensorColumn>& tensors) {
  json list = json::array();
  for (size_t f = 0; f < fields.size(); ++f) {
    if (tensors[f].decoder != nullptr) {
      list.push_back({{"encoded", true}});
    } else {
      list.push_back(
          {{"type", std::string(DataTypeName(fields[f].type))}, {"shape", fields[f].shape}});
    }
  }
  const std::string text = json{{"fields", list}}.dump();
  return FormatLength(text.size()) + text;
}

struct Head {
  std::vector<RowType> fields;
  size_t bytes = 0;
};

std::optional<Head> ParseHead(const std::string& text) {
  if (text.size() < kLengthBytes) {
    return std::nullopt;
  }
  const uint64_t length = ParseLength(text);
  if (length > text.size() - kLengthBytes) {
    return std::nullopt;
  }
  const json header = json::parse(text.substr(kLengthBytes, length), nullptr, false);
  if (!header.is_object() || !header.contains("fields") || !header["fields"].is_array()) {
    return std::nullopt;
  }
  Head head;
  head.bytes = kLengthBytes + length;
  for (const json& field : header["fields"]) {
    if (field.is_object() && field.contains("encoded")) {
      head.fields.push_back(ByteRangeType());
      continue;
    }
    if (!field.is_object() || !field.contains("type") || !field["type"].is_string() ||
        !field.contains("shape") || !field["shape"].is_array()) {
      return std::nullopt;
    }
    const auto type = DataTypeFromName(field["type"].get_ref<const std::string&>());
    if (!type.has_value()) {
      return std::nullopt;
    }
    RowType row{*type, {}};
    for (const json& dim : field["shape"]) {
      row.shape.push_back(dim.is_number_unsigned() ? dim.get<int64_t>() : kUnknownDim);
    }
    if (!RowBytes(row).has_value()) {
      return std::nullopt;
    }
    head.fields.push_back(std::move(row));
  }
  return head;
}

bool HasEncoded(const std::vector<TensorColumn>& tensors) {
  return std::ranges::any_of(tensors,
                             [](const TensorColumn& tensor) { return tensor.decoder != nullptr; });
}

absl::StatusOr<std::shared_ptr<const RowStore>> OpenRows(const std::string& path,
                                                         const std::vector<TensorColumn>& tensors) {
  BRAID_ASSIGN_OR_RETURN(const auto file, DataFile::Open(path));
  BRAID_ASSIGN_OR_RETURN(const std::string text, file->Read(0, kMaxHeader));
  const std::optional<Head> head = ParseHead(text);
  if (!head.has_value() || head->fields.size() != tensors.size()) {
    return absl::DataLossError(absl::StrCat("'", path, "' has a damaged header"));
  }
  size_t bytes = static_cast<size_t>(file->bytes()) - head->bytes;
  size_t values_bytes = 0;
  if (HasEncoded(tensors)) {
    BRAID_ASSIGN_OR_RETURN(
        const std::string end,
        file->Read(std::max<int64_t>(0, file->bytes() - int64_t{kLengthBytes}), kLengthBytes));
    values_bytes = end.size() == kLengthBytes ? ParseLength(end) : bytes;
    if (bytes < kLengthBytes || values_bytes > bytes - kLengthBytes) {
      return absl::DataLossError(absl::StrCat("'", path, "' has a damaged end"));
    }
    bytes -= values_bytes + kLengthBytes;
  }
  BRAID_ASSIGN_OR_RETURN(const auto values, MappedRange::Map(file, head->bytes, values_bytes));
  BRAID_ASSIGN_OR_RETURN(const auto range,
                         MappedRange::Map(file, head->bytes + values_bytes, bytes));
  const size_t stride = StrideOf(head->fields);
  size_t first = 0;
  std::vector<RowStore::Field> fields;
  for (size_t f = 0; f < tensors.size(); ++f) {
    RowStore::Field& field = fields.emplace_back();
    if (tensors[f].decoder != nullptr) {
      field.tensor = tensors[f];
      field.encoded =
          std::make_shared<const EncodedValues>(range, first, stride, values, tensors[f].files);
    } else {
      // The values were converted when they were packed.
      field.tensor = {tensors[f].name, tensors[f].columns};
      field.stored = head->fields[f];
      field.first = range->data() + first;
      field.stride = stride;
      field.range = range;
    }
    first += *RowBytes(head->fields[f]);
  }
  if (stride == 0 || bytes == 0 || bytes % stride != 0) {
    return absl::DataLossError(absl::StrCat(
        "'", path, "' has ", bytes, " bytes of rows (expected a multiple of ", stride, ")"));
  }
  return std::make_shared<RowStore>(static_cast<int64_t>(bytes / stride), std::move(fields));
}

// Writes the encoded values of a column. Returns their byte ranges. `*values_bytes`: written so
// far.
absl::StatusOr<HostTensor> PackValues(const arrow::Array& column, uint64_t* values_bytes,
                                      FileSink* sink) {
  HostTensor byte_ranges;
  byte_ranges.type = ByteRangeType().type;
  byte_ranges.shape = {column.length(), 2};
  byte_ranges.bytes = static_cast<size_t>(column.length()) * sizeof(EncodedValues::ByteRange);
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, AllocateHost(byte_ranges.bytes));
  for (int64_t row = 0; row < column.length(); ++row) {
    const std::optional<absl::string_view> value = BytesOfRow(column, row);
    const EncodedValues::ByteRange range{*values_bytes, value.has_value()
                                                            ? uint64_t{value->size()}
                                                            : EncodedValues::ByteRange::kNull};
    std::memcpy(memory.get() + static_cast<size_t>(row) * sizeof(range), &range, sizeof(range));
    if (value.has_value()) {
      BRAID_RETURN_IF_ERROR(sink->Write(*value));
      *values_bytes += value->size();
    }
  }
  byte_ranges.data = memory.get();
  byte_ranges.owner = memory;
  return byte_ranges;
}

// Appends a file and removes it.
absl::Status MoveInto(FileSink* sink, const std::string& path) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  BRAID_ASSIGN_OR_RETURN(const auto file, DataFile::Open(path));
  for (int64_t offset = 0; offset < file->bytes(); offset += int64_t{kPieceBytes}) {
    BRAID_ASSIGN_OR_RETURN(const std::string piece, file->Read(offset, kPieceBytes));
    BRAID_RETURN_IF_ERROR(sink->Write(piece));
  }
  return RemoveTree(path);
}

// Interleaves the rows of the tensors.
std::string PackRows(const std::vector<HostTensor>& tensors, size_t stride) {
  const auto rows = static_cast<size_t>(tensors.front().rows());
  std::string packed(rows * stride, '\0');
  size_t offset = 0;
  for (const HostTensor& tensor : tensors) {
    const size_t row_bytes = tensor.bytes / std::max<size_t>(rows, 1);
    const char* const source = static_cast<const char*>(tensor.data);
    for (size_t row = 0; row < rows && row_bytes > 0; ++row) {
      std::memcpy(packed.data() + row * stride + offset, source + row * row_bytes, row_bytes);
    }
    offset += row_bytes;
  }
  return packed;
}

// File for the rows of a file that is being written, until the encoded values are complete.
std::string RowsPath(const std::string& path) { return absl::StrCat(path, ".rows.tmp"); }

struct PackedFile {
  std::string path;
  int64_t used_ns = 0;
  int64_t bytes = 0;
};

// The time of access is set here, so that it is right on file systems that do not keep it. The time
// of modification must not change while the file is mapped.
void MarkUsed(const std::string& path) {
  const timespec times[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  // Without it, the file is removed earlier than necessary.
  (void)utimensat(AT_FDCWD, path.c_str(), times, 0);
}

absl::StatusOr<PackedFile> DescribeFile(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) {
    return FileError(errno, "read", path);
  }
  return PackedFile{path, about.st_atim.tv_sec * int64_t{1'000'000'000} + about.st_atim.tv_nsec,
                    about.st_size};
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowCache>> RowCache::Open(std::string directory, int64_t max_bytes) {
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory));
  std::error_code error;
  for (fs::directory_iterator child(directory, error), end; !error && child != end;
       child.increment(error)) {
    if (absl::EndsWith(child->path().native(), ".tmp")) {
      BRAID_RETURN_IF_ERROR(RemoveTree(child->path()));
    }
  }
  if (error) {
    return FileError(error.value(), "list", directory);
  }
  return std::unique_ptr<RowCache>(new RowCache(std::move(directory), max_bytes));
}

absl::StatusOr<std::shared_ptr<const RowStore>> RowCache::Rows(
    DataSource* source, const std::vector<TensorColumn>& tensors, const PackProgress& progress) {
  if (tensors.empty()) {
    return absl::InvalidArgumentError("no columns (expected at least one)");
  }
  for (const TensorColumn& tensor : tensors) {
    BRAID_RETURN_IF_ERROR(TensorRowType(source->columns(), tensor).status());
  }
  const bool joins = std::any_of(tensors.begin(), tensors.end(), [](const TensorColumn& tensor) {
    return tensor.columns.size() > 1;
  });
  if (source->arrays() != nullptr && !joins) {
    return MapRows(*source, tensors);
  }
  const std::string path = absl::StrCat(directory_, "/", KeyOf(*source, tensors), kSuffix);
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const RowStore> rows,
                         OpenOrClaim(tensors, path, progress));
  if (rows != nullptr) {
    return rows;
  }
  const std::string temporary = absl::StrCat(path, ".tmp");
  const absl::StatusOr<int64_t> packed =
      Pack(source, tensors, temporary, [&](int64_t done) -> absl::Status {
        {
          const absl::MutexLock lock(&mu_);
          packing_[path] = done;
        }
        return progress(done);
      });
  if (!packed.ok()) {
    // Gives the space back. The error of packing matters more.
    RemoveTree(temporary).IgnoreError();
    RemoveTree(RowsPath(temporary)).IgnoreError();
  }
  const absl::MutexLock lock(&mu_);
  packing_.erase(path);
  BRAID_RETURN_IF_ERROR(packed.status());
  BRAID_RETURN_IF_ERROR(RenameDurably(temporary, path));
  BRAID_RETURN_IF_ERROR(Evict(path, max_bytes_ - *packed));
  return Use(tensors, path);
}

absl::StatusOr<std::shared_ptr<const RowStore>> RowCache::OpenOrClaim(
    const std::vector<TensorColumn>& tensors, const std::string& path,
    const PackProgress& progress) {
  const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !packing_.contains(path); };
  while (!mu_.LockWhenWithTimeout(absl::Condition(&free), kProgressInterval)) {
    const int64_t done = packing_.at(path);
    mu_.Unlock();
    BRAID_RETURN_IF_ERROR(progress(done));
  }
  std::error_code error;
  absl::StatusOr<std::shared_ptr<const RowStore>> rows = nullptr;
  if (fs::exists(path, error)) {
    rows = Use(tensors, path);
  }
  if (absl::IsDataLoss(rows.status())) {
    rows = nullptr;  // Packing replaces the damaged file.
  }
  if (rows.ok() && *rows == nullptr) {
    packing_[path] = 0;
  }
  mu_.Unlock();
  return rows;
}

absl::StatusOr<std::shared_ptr<const RowStore>> RowCache::Use(
    const std::vector<TensorColumn>& tensors, const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const RowStore> rows, OpenRows(path, tensors));
  MarkUsed(path);
  // Stores of one file are not shared, because their tensors may have other names.
  std::vector<std::weak_ptr<const RowStore>>& users = in_use_[path];
  std::erase_if(users, [](const auto& user) { return user.expired(); });
  users.push_back(rows);
  return rows;
}

absl::StatusOr<int64_t> RowCache::Pack(DataSource* source, const std::vector<TensorColumn>& tensors,
                                       const std::string& path,
                                       const PackProgress& progress) const {
  BRAID_ASSIGN_OR_RETURN(FileSink sink, FileSink::Create(path));
  std::optional<FileSink> rows_sink;
  if (HasEncoded(tensors)) {
    BRAID_ASSIGN_OR_RETURN(rows_sink, FileSink::Create(RowsPath(path)));
  }
  BRAID_ASSIGN_OR_RETURN(auto rows, source->Scan({.columns = ColumnsToRead(tensors)}));
  ReadAhead scan(std::move(rows));
  std::vector<RowType> fields;
  size_t stride = 0;
  uint64_t values_bytes = 0;
  int64_t row = 0;
  while (true) {
    BRAID_RETURN_IF_ERROR(progress(row));
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::RecordBatch> batch, scan.Next());
    if (batch == nullptr) {
      break;
    }
    // Reads the tensors before the head is written, which needs their types.
    std::vector<HostTensor> columns(tensors.size());
    BRAID_ASSIGN_OR_RETURN(const std::vector<RowType> types,
                           ReadColumns(*batch, tensors, row, &columns));
    if (fields.empty()) {
      fields = types;
      stride = StrideOf(fields);
      if (stride == 0) {
        return absl::InvalidArgumentError("rows without elements (expected at least one element)");
      }
      BRAID_RETURN_IF_ERROR(sink.Write(HeadOf(fields, tensors)));
    }
    for (size_t f = 0; f < fields.size(); ++f) {
      BRAID_RETURN_IF_ERROR(CheckSameType(tensors[f], row, types[f], fields[f]));
      if (tensors[f].decoder != nullptr) {
        BRAID_ASSIGN_OR_RETURN(
            columns[f],
            PackValues(*batch->GetColumnByName(tensors[f].columns.front()), &values_bytes, &sink));
      }
    }
    BRAID_RETURN_IF_ERROR((rows_sink ? *rows_sink : sink).Write(PackRows(columns, stride)));
    row += batch->num_rows();
    if (sink.bytes() + (rows_sink ? rows_sink->bytes() : 0) > max_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the packed rows exceed the cache of ", max_bytes_,
                       " bytes (expected fewer columns or rows, or a larger cache)"));
    }
  }
  if (row == 0) {
    return absl::InvalidArgumentError("no rows (expected at least one)");
  }
  if (rows_sink.has_value()) {
    BRAID_RETURN_IF_ERROR(rows_sink->Finish());
    BRAID_RETURN_IF_ERROR(MoveInto(&sink, RowsPath(path)));
    BRAID_RETURN_IF_ERROR(sink.Write(FormatLength(values_bytes)));
  }
  BRAID_RETURN_IF_ERROR(sink.Finish());
  return sink.bytes();
}

absl::Status RowCache::Evict(const std::string& path, int64_t limit) {
  std::vector<PackedFile> files;
  int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator child(directory_, error), end; !error && child != end;
       child.increment(error)) {
    if (absl::EndsWith(child->path().native(), kSuffix) && child->path() != path) {
      BRAID_ASSIGN_OR_RETURN(PackedFile file, DescribeFile(child->path()));
      total += file.bytes;
      files.push_back(std::move(file));
    }
  }
  if (error) {
    return FileError(error.value(), "list", directory_);
  }
  std::sort(files.begin(), files.end(),
            [](const PackedFile& a, const PackedFile& b) { return a.used_ns < b.used_ns; });
  for (const PackedFile& file : files) {
    if (total > limit && !InUse(file.path)) {
      BRAID_RETURN_IF_ERROR(RemoveTree(file.path));
      in_use_.erase(file.path);
      total -= file.bytes;
    }
  }
  return absl::OkStatus();
}

bool RowCache::InUse(const std::string& path) const {
  const auto users = in_use_.find(path);
  return users != in_use_.end() && std::any_of(users->second.begin(), users->second.end(),
                                               [](const auto& user) { return !user.expired(); });
}

}  // namespace braid

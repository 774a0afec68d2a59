#include "server/data/table_source.h"

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "arrow/buffer.h"
#include "arrow/csv/api.h"
#include "arrow/io/file.h"
#include "arrow/io/memory.h"
#include "arrow/ipc/reader.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "parquet/arrow/reader.h"
#include "parquet/arrow/schema.h"
#include "parquet/file_reader.h"
#include "parquet/metadata.h"
#include "server/base/status.h"
#include "server/data/arrow_status.h"

namespace braid {
namespace {

using Batch = std::shared_ptr<arrow::RecordBatch>;
using ReadBatch = std::function<absl::StatusOr<Batch>()>;

// Skips rows, cuts long batches and puts the columns into the requested order.
class TableScan final : public RowScan {
 public:
  // `read` returns the next batch, or null at the end. `skip`: rows to skip first.
  TableScan(std::shared_ptr<const DataFile> file, std::vector<std::string> columns, int64_t skip,
            int64_t batch_rows, ReadBatch read)
      : file_(std::move(file)),
        columns_(std::move(columns)),
        skip_(skip),
        batch_rows_(batch_rows),
        read_(std::move(read)) {}

  absl::StatusOr<Batch> Next() override {
    while (rest_ == nullptr || rest_->num_rows() == 0) {
      absl::StatusOr<Batch> batch = read_();
      // A file that changes while it is read may look damaged.
      BRAID_RETURN_IF_ERROR(file_->CheckUnchanged());
      BRAID_RETURN_IF_ERROR(batch.status());
      if (*batch == nullptr) {
        return nullptr;
      }
      BRAID_ASSIGN_OR_RETURN(rest_, Select(**batch));
      const int64_t skipped = std::min(skip_, rest_->num_rows());
      rest_ = rest_->Slice(skipped);
      skip_ -= skipped;
    }
    Batch next = rest_->Slice(0, batch_rows_);
    rest_ = rest_->Slice(next->num_rows());
    return next;
  }

 private:
  absl::StatusOr<Batch> Select(const arrow::RecordBatch& batch) const {
    std::vector<int> indices;
    for (const std::string& column : columns_) {
      indices.push_back(batch.schema()->GetFieldIndex(column));
    }
    return FromArrow(batch.SelectColumns(indices), "read", file_->path());
  }

  const std::shared_ptr<const DataFile> file_;
  const std::vector<std::string> columns_;
  int64_t skip_;
  const int64_t batch_rows_;
  const ReadBatch read_;
  Batch rest_;
};

// Common part of the formats.
class TableSource : public DataSource {
 public:
  const std::vector<Column>& columns() const override { return columns_; }
  const std::shared_ptr<arrow::Schema>& schema() const override { return schema_; }
  std::string Identity() const override { return file_->Identity(); }

 protected:
  TableSource(std::shared_ptr<const DataFile> file, std::shared_ptr<arrow::Schema> schema,
              std::vector<Column> columns)
      : file_(std::move(file)), schema_(std::move(schema)), columns_(std::move(columns)) {}

  std::vector<std::string> NamesOf(const std::vector<int>& indices) const {
    std::vector<std::string> names;
    for (const int index : indices) {
      names.push_back(columns_[static_cast<size_t>(index)].name);
    }
    return names;
  }
  const std::shared_ptr<const DataFile>& file() const { return file_; }
  absl::string_view path() const { return file_->path(); }

 private:
  const std::shared_ptr<const DataFile> file_;
  const std::shared_ptr<arrow::Schema> schema_;
  const std::vector<Column> columns_;
};

absl::StatusOr<std::shared_ptr<arrow::io::ReadableFile>> OpenStream(const DataFile& file) {
  BRAID_ASSIGN_OR_RETURN(const FileDescriptor again, file.Reopen());
  const int descriptor = fcntl(again.get(), F_DUPFD_CLOEXEC, 0);
  return FromArrow(arrow::io::ReadableFile::Open(descriptor), "read", file.path());
}

// Parquet.

using ParquetReader = std::shared_ptr<parquet::arrow::FileReader>;

absl::StatusOr<ParquetReader> OpenParquet(const DataFile& file, int64_t batch_rows,
                                          std::shared_ptr<parquet::FileMetaData> metadata) {
  BRAID_ASSIGN_OR_RETURN(auto stream, OpenStream(file));
  parquet::ReaderProperties properties = parquet::default_reader_properties();
  // Keeps memory independent of the size of row groups.
  properties.enable_buffered_stream();
  parquet::ArrowReaderProperties arrow_properties = parquet::default_arrow_reader_properties();
  arrow_properties.set_pre_buffer(false);
  // Arrow's thread pool takes all cores from requests. ReadAhead decodes on one thread.
  arrow_properties.set_use_threads(false);
  arrow_properties.set_batch_size(batch_rows);
  parquet::arrow::FileReaderBuilder builder;
  BRAID_RETURN_IF_ERROR(FromArrow(builder.Open(std::move(stream), properties, std::move(metadata)),
                                  "read", file.path()));
  std::unique_ptr<parquet::arrow::FileReader> reader;
  BRAID_RETURN_IF_ERROR(
      FromArrow(builder.properties(arrow_properties)->Build(&reader), "read", file.path()));
  return ParquetReader(std::move(reader));
}

// Appends the leaf columns of a field: Parquet stores nested fields as several columns.
void AppendLeaves(const parquet::arrow::SchemaField& field, std::vector<int>* leaves) {
  if (field.is_leaf()) {
    leaves->push_back(field.column_index);
  }
  for (const parquet::arrow::SchemaField& child : field.children) {
    AppendLeaves(child, leaves);
  }
}

class ParquetSource final : public TableSource {
 public:
  static absl::StatusOr<std::unique_ptr<DataSource>> Open(std::shared_ptr<const DataFile> file) {
    BRAID_ASSIGN_OR_RETURN(const ParquetReader reader, OpenParquet(*file, 1, nullptr));
    std::shared_ptr<arrow::Schema> schema;
    BRAID_RETURN_IF_ERROR(FromArrow(reader->GetSchema(&schema), "read", file->path()));
    BRAID_ASSIGN_OR_RETURN(std::vector<Column> columns, ColumnsOf(*schema));
    return std::unique_ptr<DataSource>(new ParquetSource(std::move(file), std::move(schema),
                                                         std::move(columns),
                                                         reader->parquet_reader()->metadata()));
  }

  absl::string_view format() const override { return "Parquet"; }
  absl::StatusOr<int64_t> Rows() override { return metadata_->num_rows(); }
  std::optional<int64_t> KnownRows() const override { return metadata_->num_rows(); }

  absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) override {
    BRAID_ASSIGN_OR_RETURN(const std::vector<int> indices,
                           ColumnIndices(columns(), options.columns));
    BRAID_RETURN_IF_ERROR(file()->CheckUnchanged());
    const int64_t batch_rows = BatchRows(options, columns(), indices);
    BRAID_ASSIGN_OR_RETURN(const ParquetReader reader, OpenParquet(*file(), batch_rows, metadata_));
    std::vector<int> leaves;
    for (const int index : indices) {
      AppendLeaves(reader->manifest().schema_fields[static_cast<size_t>(index)], &leaves);
    }
    std::sort(leaves.begin(), leaves.end());
    int64_t skip = options.first_row;
    int group = 0;
    for (; group < metadata_->num_row_groups(); ++group) {
      const int64_t rows = metadata_->RowGroup(group)->num_rows();
      if (skip < rows) {
        break;
      }
      skip -= rows;
    }
    std::vector<int> groups;
    for (; group < metadata_->num_row_groups(); ++group) {
      groups.push_back(group);
    }
    BRAID_ASSIGN_OR_RETURN(std::unique_ptr<arrow::RecordBatchReader> opened,
                           FromArrow(reader->GetRecordBatchReader(groups, leaves), "read", path()));
    // The batch reader refers to the file reader.
    ReadBatch read = [reader, file = file(),
                      batches = std::shared_ptr<arrow::RecordBatchReader>(std::move(opened))] {
      return FromArrow(batches->Next(), "read", file->path());
    };
    return std::make_unique<TableScan>(file(), NamesOf(indices), skip, batch_rows, std::move(read));
  }

 private:
  ParquetSource(std::shared_ptr<const DataFile> file, std::shared_ptr<arrow::Schema> schema,
                std::vector<Column> columns, std::shared_ptr<parquet::FileMetaData> metadata)
      : TableSource(std::move(file), std::move(schema), std::move(columns)),
        metadata_(std::move(metadata)) {}

  const std::shared_ptr<parquet::FileMetaData> metadata_;
};

// Arrow IPC.

// Mapped file as a buffer of Arrow.
class RangeBuffer final : public arrow::Buffer {
 public:
  explicit RangeBuffer(std::shared_ptr<const MappedRange> range)
      : Buffer(reinterpret_cast<const uint8_t*>(range->data()),
               static_cast<int64_t>(range->bytes())),
        range_(std::move(range)) {}

 private:
  const std::shared_ptr<const MappedRange> range_;
};

using IpcReader = std::shared_ptr<arrow::ipc::RecordBatchFileReader>;

class IpcSource final : public TableSource {
 public:
  static absl::StatusOr<std::unique_ptr<DataSource>> Open(std::shared_ptr<const DataFile> file) {
    BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const MappedRange> range,
                           MappedRange::Map(file, 0, static_cast<size_t>(file->bytes())));
    BRAID_ASSIGN_OR_RETURN(const IpcReader reader, OpenReader(*file, range, {}));
    BRAID_ASSIGN_OR_RETURN(std::vector<Column> columns, ColumnsOf(*reader->schema()));
    if (columns.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", file->path(), "' has no columns (expected at least one)"));
    }
    // One column is enough to count rows. Reading compressed columns unpacks them.
    BRAID_ASSIGN_OR_RETURN(const IpcReader counter, OpenReader(*file, range, {0}));
    std::vector<int64_t> ends;
    int64_t end = 0;
    for (int b = 0; b < counter->num_record_batches(); ++b) {
      BRAID_ASSIGN_OR_RETURN(const Batch batch,
                             FromArrow(counter->ReadRecordBatch(b), "read", file->path()));
      end += batch->num_rows();
      ends.push_back(end);
    }
    BRAID_RETURN_IF_ERROR(range->Check());
    return std::unique_ptr<DataSource>(new IpcSource(
        std::move(file), reader->schema(), std::move(columns), std::move(range), std::move(ends)));
  }

  absl::string_view format() const override { return "Arrow IPC"; }
  absl::StatusOr<int64_t> Rows() override { return rows(); }
  std::optional<int64_t> KnownRows() const override { return rows(); }

  absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) override {
    BRAID_ASSIGN_OR_RETURN(const std::vector<int> indices,
                           ColumnIndices(columns(), options.columns));
    BRAID_RETURN_IF_ERROR(file()->CheckUnchanged());
    const int64_t batch_rows = BatchRows(options, columns(), indices);
    BRAID_ASSIGN_OR_RETURN(const IpcReader reader, OpenReader(*file(), range_, indices));
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), options.first_row);
    const int64_t skip =
        first == ends_.begin() ? options.first_row : options.first_row - *(first - 1);
    ReadBatch read = [reader, file = file(), range = range_,
                      next = static_cast<int>(first - ends_.begin())]() mutable {
      return ReadChecked(*reader, *file, *range, next++);
    };
    return std::make_unique<TableScan>(file(), NamesOf(indices), skip, batch_rows, std::move(read));
  }

 private:
  IpcSource(std::shared_ptr<const DataFile> file, std::shared_ptr<arrow::Schema> schema,
            std::vector<Column> columns, std::shared_ptr<const MappedRange> range,
            std::vector<int64_t> ends)
      : TableSource(std::move(file), std::move(schema), std::move(columns)),
        range_(std::move(range)),
        ends_(std::move(ends)) {}

  int64_t rows() const { return ends_.empty() ? 0 : ends_.back(); }

  static absl::StatusOr<IpcReader> OpenReader(const DataFile& file,
                                              const std::shared_ptr<const MappedRange>& range,
                                              std::vector<int> fields) {
    arrow::ipc::IpcReadOptions options = arrow::ipc::IpcReadOptions::Defaults();
    options.included_fields = std::move(fields);
    options.use_threads = false;
    options.ensure_alignment = arrow::ipc::Alignment::kDataTypeSpecificAlignment;
    return FromArrow(
        arrow::ipc::RecordBatchFileReader::Open(
            std::make_shared<arrow::io::BufferReader>(std::make_shared<RangeBuffer>(range)),
            options),
        "read", file.path());
  }

  static absl::StatusOr<Batch> ReadChecked(arrow::ipc::RecordBatchFileReader& reader,
                                           const DataFile& file, const MappedRange& range,
                                           int index) {
    if (index >= reader.num_record_batches()) {
      return nullptr;
    }
    BRAID_ASSIGN_OR_RETURN(Batch batch,
                           FromArrow(reader.ReadRecordBatch(index), "read", file.path()));
    // Offsets of strings and lists in a damaged file may lead outside of it.
    BRAID_RETURN_IF_ERROR(FromArrow(batch->ValidateFull(), "read", file.path()));
    BRAID_RETURN_IF_ERROR(range.Check());
    return batch;
  }

  const std::shared_ptr<const MappedRange> range_;
  const std::vector<int64_t> ends_;  // rows up to the end of each batch
};

// CSV.

using CsvReader = std::shared_ptr<arrow::csv::StreamingReader>;

class CsvSource final : public TableSource {
 public:
  static absl::StatusOr<std::unique_ptr<DataSource>> Open(std::shared_ptr<const DataFile> file) {
    BRAID_ASSIGN_OR_RETURN(const CsvReader reader, OpenReader(*file, {}));
    BRAID_ASSIGN_OR_RETURN(std::vector<Column> columns, ColumnsOf(*reader->schema()));
    return std::unique_ptr<DataSource>(
        new CsvSource(std::move(file), reader->schema(), std::move(columns)));
  }

  absl::string_view format() const override { return "CSV"; }

  absl::StatusOr<int64_t> Rows() override ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    if (!rows_.has_value()) {
      BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<RowScan> scan, Scan({}));
      int64_t rows = 0;
      while (true) {
        BRAID_ASSIGN_OR_RETURN(const Batch batch, scan->Next());
        if (batch == nullptr) {
          break;
        }
        rows += batch->num_rows();
      }
      rows_ = rows;
    }
    return *rows_;
  }

  std::optional<int64_t> KnownRows() const override ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    return rows_;
  }

  absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) override {
    BRAID_ASSIGN_OR_RETURN(const std::vector<int> indices,
                           ColumnIndices(columns(), options.columns));
    BRAID_RETURN_IF_ERROR(file()->CheckUnchanged());
    const int64_t batch_rows = BatchRows(options, columns(), indices);
    std::vector<std::string> names = NamesOf(indices);
    BRAID_ASSIGN_OR_RETURN(const CsvReader reader, OpenReader(*file(), names));
    ReadBatch read = [reader, file = file()] {
      return FromArrow(reader->Next(), "read", file->path());
    };
    return std::make_unique<TableScan>(file(), std::move(names), options.first_row, batch_rows,
                                       std::move(read));
  }

 private:
  CsvSource(std::shared_ptr<const DataFile> file, std::shared_ptr<arrow::Schema> schema,
            std::vector<Column> columns)
      : TableSource(std::move(file), std::move(schema), std::move(columns)) {}

  // Types are inferred each time, from the same first block.
  static absl::StatusOr<CsvReader> OpenReader(const DataFile& file,
                                              std::vector<std::string> columns) {
    BRAID_ASSIGN_OR_RETURN(auto stream, OpenStream(file));
    arrow::csv::ConvertOptions convert = arrow::csv::ConvertOptions::Defaults();
    convert.include_columns = std::move(columns);
    arrow::csv::ReadOptions read = arrow::csv::ReadOptions::Defaults();
    read.use_threads = false;
    arrow::csv::ParseOptions parse = arrow::csv::ParseOptions::Defaults();
    parse.newlines_in_values = true;
    return FromArrow(arrow::csv::StreamingReader::Make(arrow::io::default_io_context(),
                                                       std::move(stream), read, parse, convert),
                     "read", file.path());
  }

  mutable absl::Mutex mu_;
  std::optional<int64_t> rows_ ABSL_GUARDED_BY(mu_);
};

// Several tables.

class ConcatenatedScan final : public RowScan {
 public:
  ConcatenatedScan(std::vector<DataSource*> parts, ScanOptions options)
      : parts_(std::move(parts)), options_(std::move(options)) {}

  absl::StatusOr<Batch> Next() override {
    while (true) {
      if (scan_ == nullptr) {
        if (part_ == parts_.size()) {
          return nullptr;
        }
        BRAID_ASSIGN_OR_RETURN(scan_, parts_[part_++]->Scan(options_));
        options_.first_row = 0;
      }
      BRAID_ASSIGN_OR_RETURN(Batch batch, scan_->Next());
      if (batch != nullptr) {
        return batch;
      }
      scan_ = nullptr;
    }
  }

 private:
  const std::vector<DataSource*> parts_;
  ScanOptions options_;
  size_t part_ = 0;
  std::unique_ptr<RowScan> scan_;
};

class ConcatenatedSource final : public DataSource {
 public:
  explicit ConcatenatedSource(std::vector<std::unique_ptr<DataSource>> parts)
      : parts_(std::move(parts)) {}

  absl::string_view format() const override { return parts_.front()->format(); }
  const std::vector<Column>& columns() const override { return parts_.front()->columns(); }
  const std::shared_ptr<arrow::Schema>& schema() const override { return parts_.front()->schema(); }
  std::string Identity() const override {
    std::string identity;
    for (const auto& part : parts_) {
      identity += part->Identity();
    }
    return identity;
  }
  absl::StatusOr<int64_t> Rows() override {
    int64_t rows = 0;
    for (const auto& part : parts_) {
      BRAID_ASSIGN_OR_RETURN(const int64_t more, part->Rows());
      rows += more;
    }
    return rows;
  }
  std::optional<int64_t> KnownRows() const override {
    int64_t rows = 0;
    for (const auto& part : parts_) {
      const std::optional<int64_t> more = part->KnownRows();
      if (!more.has_value()) {
        return std::nullopt;
      }
      rows += *more;
    }
    return rows;
  }
  absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) override {
    BRAID_RETURN_IF_ERROR(ColumnIndices(columns(), options.columns).status());
    ScanOptions rest = options;
    std::vector<DataSource*> parts;
    for (const auto& part : parts_) {
      if (parts.empty() && rest.first_row > 0) {
        BRAID_ASSIGN_OR_RETURN(const int64_t rows, part->Rows());
        if (rest.first_row >= rows) {
          rest.first_row -= rows;
          continue;
        }
      }
      parts.push_back(part.get());
    }
    return std::make_unique<ConcatenatedScan>(std::move(parts), std::move(rest));
  }

 private:
  const std::vector<std::unique_ptr<DataSource>> parts_;
};

constexpr absl::string_view kParquetMagic = "PAR1";
constexpr absl::string_view kIpcMagic = "ARROW1";

}  // namespace

bool IsTableFile(absl::string_view path, absl::string_view head) {
  return absl::StartsWith(head, kParquetMagic) || absl::StartsWith(head, kIpcMagic) ||
         absl::EndsWith(path, ".parquet") || absl::EndsWith(path, ".arrow") ||
         absl::EndsWith(path, ".csv");
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenTableSource(std::shared_ptr<const DataFile> file) {
  BRAID_ASSIGN_OR_RETURN(const std::string head, file->Read(0, 8));
  if (absl::StartsWith(head, kIpcMagic) || absl::EndsWith(file->path(), ".arrow")) {
    return IpcSource::Open(std::move(file));
  }
  if (absl::StartsWith(head, kParquetMagic) || absl::EndsWith(file->path(), ".parquet")) {
    return ParquetSource::Open(std::move(file));
  }
  return CsvSource::Open(std::move(file));
}

absl::StatusOr<std::unique_ptr<DataSource>> ConcatenateSources(
    std::vector<std::unique_ptr<DataSource>> parts, const std::vector<std::string>& names) {
  for (size_t p = 1; p < parts.size(); ++p) {
    if (!parts[p]->schema()->Equals(*parts.front()->schema(), /*check_metadata=*/false)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", names[p], "': ",
                       SchemaDifference(*parts[p]->schema(), *parts.front()->schema(),
                                        absl::StrCat("'", names.front(), "'"))));
    }
  }
  if (parts.size() == 1) {
    return std::move(parts.front());
  }
  return std::make_unique<ConcatenatedSource>(std::move(parts));
}

}  // namespace braid

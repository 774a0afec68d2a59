// Parquet files that are written in parts.
//
// A Parquet file ends with its metadata, which has the positions of all column chunks. Each part is
// written as a Parquet file of its own whose positions count from the beginning of the whole file.
// Its metadata goes into the file "footers" instead of its end. At the end, the merged metadata of
// all parts completes the file. The magic number at the beginning of each part is left unused in
// between.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "arrow/io/interfaces.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "arrow/util/compression.h"
#include "parquet/arrow/schema.h"
#include "parquet/arrow/writer.h"
#include "parquet/exception.h"
#include "parquet/metadata.h"
#include "parquet/properties.h"
#include "server/base/status.h"
#include "server/data/arrow_status.h"
#include "server/data/column.h"
#include "server/data/output/growing_file.h"
#include "server/data/output/row_encoder.h"

namespace braid {
namespace {

// A row group is in memory until it is complete.
constexpr int64_t kRowGroupBytes = int64_t{64} << 20;
constexpr int64_t kMaxRowGroupRows = int64_t{1} << 20;
// The metadata is followed by its length and the magic number.
constexpr size_t kTrailerBytes = 8;

// Appends to a file and counts positions from its beginning.
class FileStream final : public arrow::io::OutputStream {
 public:
  explicit FileStream(GrowingFile* file) : file_(file) {}

  // While true, Tell() returns 0: Arrow refuses to begin a Parquet file at another position.
  void PretendToBeEmpty(bool pretend) { pretend_empty_ = pretend; }
  // From now on, collects the bytes in `tail` instead of writing them.
  void Divert(std::string* tail) { tail_ = tail; }
  // First error of the file, which Arrow's errors only repeat as text.
  const absl::Status& failure() const { return failure_; }

  using arrow::io::OutputStream::Write;
  arrow::Status Write(const void* data, int64_t bytes) override {
    const absl::string_view view(static_cast<const char*>(data), static_cast<size_t>(bytes));
    if (tail_ != nullptr) {
      tail_->append(view.data(), view.size());
      return arrow::Status::OK();
    }
    if (failure_.ok()) {
      failure_ = file_->Write(view);
    }
    return failure_.ok() ? arrow::Status::OK()
                         : arrow::Status::IOError(std::string(failure_.message()));
  }
  arrow::Result<int64_t> Tell() const override {
    if (pretend_empty_) {
      return 0;
    }
    return file_->bytes() + (tail_ == nullptr ? 0 : static_cast<int64_t>(tail_->size()));
  }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }

 private:
  GrowingFile* const file_;
  bool pretend_empty_ = false;
  std::string* tail_ = nullptr;
  absl::Status failure_;
  bool closed_ = false;
};

int64_t RowGroupRows(const arrow::Schema& schema) {
  size_t row_bytes = 1;
  for (const std::shared_ptr<arrow::Field>& field : schema.fields()) {
    row_bytes += EstimatedRowBytes(ColumnOf(*field));
  }
  return std::clamp<int64_t>(kRowGroupBytes / static_cast<int64_t>(row_bytes), 1, kMaxRowGroupRows);
}

class ParquetEncoder final : public RowEncoder {
 public:
  ParquetEncoder(std::string path, std::shared_ptr<arrow::Schema> schema,
                 std::unique_ptr<GrowingFile> data, std::unique_ptr<GrowingFile> footers)
      : path_(std::move(path)),
        schema_(std::move(schema)),
        row_group_rows_(RowGroupRows(*schema_)),
        data_(std::move(data)),
        footers_(std::move(footers)) {}

  absl::Status Write(const arrow::RecordBatch& batch) override {
    BRAID_RETURN_IF_ERROR(BeginPart());
    return Written(writer_->WriteRecordBatch(batch));
  }

  absl::StatusOr<std::vector<StoredFile>> FinishPart() override {
    BRAID_RETURN_IF_ERROR(BeginPart());
    // The last row group, the metadata, its length and the magic number.
    std::string tail;
    stream_->Divert(&tail);
    BRAID_RETURN_IF_ERROR(Written(writer_->Close()));
    writer_ = nullptr;
    stream_ = nullptr;
    uint32_t length = 0;
    std::memcpy(&length, tail.data() + tail.size() - kTrailerBytes, sizeof(length));
    const size_t metadata = tail.size() - kTrailerBytes - length;
    BRAID_RETURN_IF_ERROR(data_->Write(absl::string_view(tail).substr(0, metadata)));
    BRAID_RETURN_IF_ERROR(footers_->Write(absl::string_view(tail).substr(metadata, length)));
    BRAID_ASSIGN_OR_RETURN(StoredFile data, data_->FinishPart());
    BRAID_ASSIGN_OR_RETURN(StoredFile footer, footers_->FinishPart());
    return std::vector<StoredFile>{std::move(data), std::move(footer)};
  }

  absl::Status Finish(const std::vector<OutputPart>& parts) override {
    std::shared_ptr<parquet::FileMetaData> merged;
    int64_t offset = 0;
    for (const OutputPart& part : parts) {
      BRAID_ASSIGN_OR_RETURN(const std::string footer,
                             footers_->Read(offset, static_cast<size_t>(part.files[1].bytes)));
      offset += part.files[1].bytes;
      BRAID_RETURN_IF_ERROR(FromArrow(AppendMetadata(footer, &merged), "write", path_));
    }
    FileStream stream(data_.get());
    const arrow::Status written = parquet::arrow::WriteFileMetaData(*merged, &stream);
    BRAID_RETURN_IF_ERROR(stream.failure());
    BRAID_RETURN_IF_ERROR(FromArrow(written, "write", path_));
    return data_->FinishPart().status();
  }

 private:
  absl::Status BeginPart() {
    if (writer_ != nullptr) {
      return absl::OkStatus();
    }
    const auto properties = parquet::WriterProperties::Builder()
                                .compression(arrow::Compression::SNAPPY)
                                ->max_row_group_length(row_group_rows_)
                                ->build();
    // Keeps the sizes of fixed-size lists, which Parquet lacks.
    const auto arrow_properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
    stream_ = std::make_shared<FileStream>(data_.get());
    stream_->PretendToBeEmpty(true);
    auto writer = parquet::arrow::FileWriter::Open(*schema_, arrow::default_memory_pool(), stream_,
                                                   properties, arrow_properties);
    // Positions of pages count from the beginning of the whole file.
    stream_->PretendToBeEmpty(false);
    BRAID_RETURN_IF_ERROR(Written(writer.status()));
    writer_ = *std::move(writer);
    return absl::OkStatus();
  }

  // Returns the error of the file, or that of Arrow.
  absl::Status Written(const arrow::Status& status) const {
    BRAID_RETURN_IF_ERROR(stream_->failure());
    return FromArrow(status, "write", path_);
  }

  static arrow::Status AppendMetadata(const std::string& footer,
                                      std::shared_ptr<parquet::FileMetaData>* merged) {
    BEGIN_PARQUET_CATCH_EXCEPTIONS
    std::shared_ptr<parquet::FileMetaData> metadata =
        parquet::FileMetaData::Make(footer.data(), static_cast<int64_t>(footer.size()));
    if (*merged == nullptr) {
      *merged = std::move(metadata);
    } else {
      (*merged)->AppendRowGroups(*metadata);
    }
    END_PARQUET_CATCH_EXCEPTIONS
    return arrow::Status::OK();
  }

  const std::string path_;
  const std::shared_ptr<arrow::Schema> schema_;
  const int64_t row_group_rows_;
  const std::unique_ptr<GrowingFile> data_;
  const std::unique_ptr<GrowingFile> footers_;
  // Null between parts.
  std::shared_ptr<FileStream> stream_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
};

}  // namespace

absl::Status CheckParquetColumn(const arrow::Field& field) {
  std::shared_ptr<parquet::SchemaDescriptor> stored;
  const arrow::Schema schema({field.WithName(field.name())});
  const arrow::Status status =
      parquet::arrow::ToParquetSchema(&schema, *parquet::default_writer_properties(),
                                      *parquet::default_arrow_writer_properties(), &stored);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("column '", field.name(), "' has type ",
                                                   field.type()->ToString(),
                                                   " (expected a type that Parquet has)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowEncoder>> OpenParquetEncoder(
    const std::string& directory, std::shared_ptr<arrow::Schema> schema,
    const std::vector<OutputPart>& parts) {
  std::string path = absl::StrCat(directory, "/data");
  BRAID_ASSIGN_OR_RETURN(auto data, GrowingFile::Open(path, 0, PartsOfFile(parts, 0)));
  BRAID_ASSIGN_OR_RETURN(auto footers, GrowingFile::Open(absl::StrCat(directory, "/footers"), 0,
                                                         PartsOfFile(parts, 1)));
  return std::make_unique<ParquetEncoder>(std::move(path), std::move(schema), std::move(data),
                                          std::move(footers));
}

}  // namespace braid

// Output of rows into a Parquet, .npy or JSON lines file, which continues after a crash.
//
// Rows are written in parts. Until all are written, they are in the directory "<path>.partial":
//
//   data            the growing file; a directory with one file per column for several .npy files
//   footers         metadata of each part, for Parquet only
//   manifest.json   signature, schema, and for each part its rows and the bytes and checksums of
//   its
//                   files
//   lock            held by the writer
//
// A part counts when the manifest lists it. Bytes after the listed ones are of an interrupted part
// and are cut off when the output is opened again. At the end the file is renamed, so nothing is
// copied. Parquet allows this because a file's metadata is at its end: the parts' metadata is
// merged there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "arrow/type_fwd.h"
#include "server/data/output/row_encoder.h"
#include "server/storage/file_descriptor.h"

namespace braid {

enum class DataFormat { kParquet, kNpy, kJsonLines };

// Derives the format from the suffix: ".parquet", ".npy" or ".jsonl"; a path that ends with '/' is
// a directory of .npy files. INVALID_ARGUMENT for other paths.
absl::StatusOr<DataFormat> DataFormatOf(absl::string_view path);

// Thread-compatible.
class DataWriter {
 public:
  struct Options {
    // Absolute. The directories above it are created.
    std::string path;
    // Text that identifies what is written. An interrupted output with another one is not
    // continued.
    std::string signature;
    // Replaces an existing file or directory at the end.
    bool overwrite = false;
    // nullopt: by the suffix of the path.
    std::optional<DataFormat> format = std::nullopt;
  };

  // Starts the output or continues an interrupted one. ALREADY_EXISTS if `path` exists or another
  // job's output was interrupted there, unless `overwrite`; FAILED_PRECONDITION if another writer
  // is open there; INVALID_ARGUMENT if the format cannot store a column, or for another schema than
  // that of the interrupted output; DATA_LOSS if the interrupted output is damaged.
  static absl::StatusOr<std::unique_ptr<DataWriter>> Open(Options options,
                                                          std::shared_ptr<arrow::Schema> schema);
  // Checks that Open() may start or continue the output, as far as that depends on the files.
  static absl::Status Check(const Options& options);
  // Checks the number of columns and a column of the output: INVALID_ARGUMENT as Open().
  static absl::Status CheckColumns(const Options& options, int count);
  static absl::Status CheckColumn(const Options& options, const arrow::Field& field);
  // Continues an interrupted output. Returns null if there is none, and Open() would start one.
  // Errors as Open().
  static absl::StatusOr<std::unique_ptr<DataWriter>> Continue(Options options);
  ~DataWriter();

  const std::shared_ptr<arrow::Schema>& schema() const { return schema_; }
  // Number of rows in complete parts, that is, the row to continue with.
  int64_t rows() const { return rows_; }

  // Appends rows to the current part. INVALID_ARGUMENT for a value that the format cannot store;
  // RESOURCE_EXHAUSTED if the disk is full. After an error only the destructor may be called.
  absl::Status Write(const std::shared_ptr<arrow::RecordBatch>& batch);
  // Completes the current part. It survives a crash afterwards.
  absl::Status FinishPart();
  // Completes the current part and the output, which appears at its path. After a crash, Open()
  // finds that it is complete until RemovePartial() is called.
  absl::Status Finish();

  // Removes "<path>.partial": what is left of a complete output, or an output that is given up.
  // Call it after the end of the job was recorded and the writer is destroyed. No-op if what is
  // there has another signature.
  static absl::Status RemovePartial(const std::string& path, const std::string& signature);

 private:
  DataWriter(Options options, FileDescriptor lock, std::shared_ptr<arrow::Schema> schema,
             std::unique_ptr<RowEncoder> encoder, std::vector<OutputPart> parts);

  absl::Status SaveManifest() const;

  const Options options_;
  const FileDescriptor lock_;
  const std::shared_ptr<arrow::Schema> schema_;
  const std::unique_ptr<RowEncoder> encoder_;  // null if the output is complete
  std::vector<OutputPart> parts_;
  int64_t rows_ = 0;       // of complete parts
  int64_t part_rows_ = 0;  // of the current part
};

}  // namespace braid

#include "server/jobs/file_output.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "arrow/chunked_array.h"
#include "arrow/record_batch.h"
#include "arrow/table.h"
#include "arrow/type.h"
#include "arrow/util/byte_size.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/arrow_status.h"
#include "server/data/column.h"
#include "server/data/tensor_conversion.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPathField = "spec.infer.output.path";
constexpr absl::string_view kOutputsField = "spec.infer.output.outputs";
constexpr absl::string_view kOutputField = "spec.infer.output";
constexpr absl::string_view kKeepField = "spec.infer.output.keep";

using Outputs = std::vector<std::pair<std::string, std::string>>;

// Outputs and their columns. Without a choice, all `names`.
Outputs ChooseOutputs(const Outputs& chosen, const std::vector<std::string>& names) {
  if (!chosen.empty()) {
    return chosen;
  }
  Outputs all;
  for (const std::string& name : names) {
    all.emplace_back(name, name);
  }
  return all;
}

absl::Status UnknownOutput(const std::string& name, const std::vector<std::string>& names) {
  return InvalidField(kOutputsField, absl::StrCat("unknown output '", Excerpt(name), "' (expected ",
                                                  names.size() == 1 ? "" : "one of: ",
                                                  absl::StrJoin(names, ", "), ")"));
}

// Checks that the format can store the columns, of which the first `kept` are kept ones.
absl::Status CheckColumns(const DataWriter::Options& file, const arrow::FieldVector& columns,
                          size_t kept) {
  BRAID_RETURN_IF_ERROR(
      WithField(kPathField, DataWriter::CheckColumns(file, static_cast<int>(columns.size()))));
  for (size_t c = 0; c < columns.size(); ++c) {
    BRAID_RETURN_IF_ERROR(WithField(c < kept ? kKeepField : kOutputsField,
                                    DataWriter::CheckColumn(file, *columns[c])));
  }
  return absl::OkStatus();
}

// Names the field of an error while rows are written. A value that the format lacks is one of a
// kept column, because outputs have numbers only.
absl::Status WriteError(const absl::Status& status) {
  return WithField(absl::IsInvalidArgument(status) ? kKeepField : kPathField, status);
}

std::vector<std::string> NamesOf(const std::vector<GatheredTensor>& outputs) {
  std::vector<std::string> names;
  for (const GatheredTensor& output : outputs) {
    names.push_back(output.name);
  }
  return names;
}

// Returns the rows as an array for each piece.
absl::StatusOr<std::shared_ptr<arrow::ChunkedArray>> ColumnOfOutput(const GatheredTensor& output,
                                                                    int64_t rows) {
  if (output.shape.empty() || output.shape.front() != rows) {
    return InvalidField(kOutputsField, absl::StrCat("output '", output.name, "' has shape ",
                                                    ShapeString(output.shape), " for ", rows,
                                                    " rows (expected one row for each)"));
  }
  std::vector<std::shared_ptr<arrow::Array>> pieces;
  for (const HostTensor& piece : output.pieces) {
    if (!std::equal(output.shape.begin() + 1, output.shape.end(), piece.shape.begin() + 1,
                    piece.shape.end())) {
      return InvalidField(
          kOutputsField,
          absl::StrCat("output '", output.name, "' has shapes ",
                       ShapeString(output.pieces.front().shape), " and ", ShapeString(piece.shape),
                       " for texts of different lengths (expected rows of one shape; set "
                       "pad_to_max_length, or choose other outputs)"));
    }
    const DataType type = piece.type == DataType::kBf16 ? DataType::kFp32 : piece.type;
    BRAID_ASSIGN_OR_RETURN(const HostTensor converted, ConvertTensor(piece, type, 1, 0));
    BRAID_ASSIGN_OR_RETURN(std::shared_ptr<arrow::Array> array, ToArray(converted));
    pieces.push_back(std::move(array));
  }
  return FromArrow(arrow::ChunkedArray::Make(std::move(pieces)), "join output", output.name);
}

}  // namespace

absl::StatusOr<int64_t> FileOutput::Open() {
  absl::StatusOr<std::unique_ptr<DataWriter>> writer = DataWriter::Continue(options_.file);
  if (!writer.ok()) {
    return WithField(kPathField, writer.status());
  }
  writer_ = *std::move(writer);
  if (writer_ == nullptr) {
    BRAID_RETURN_IF_ERROR(CheckObject(options_));
    return 0;
  }
  return writer_->rows();
}

absl::StatusOr<int64_t> FileOutput::Write(const InputRows& rows, const InferenceResult& result) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::Table> table, MakeTable(rows, result));
  const auto* const kept = static_cast<const arrow::RecordBatch*>(rows.kept.get());
  BRAID_RETURN_IF_ERROR(
      Begin(table->schema(), kept == nullptr ? 0 : static_cast<size_t>(kept->num_columns())));
  if (!part_began_.has_value()) {
    part_began_ = clock_->Now();
  }
  arrow::TableBatchReader reader(*table);
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::RecordBatch> batch,
                           FromArrow(reader.Next(), "write", options_.file.path));
    if (batch == nullptr) {
      break;
    }
    BRAID_RETURN_IF_ERROR(WriteError(writer_->Write(batch)));
    BRAID_ASSIGN_OR_RETURN(const int64_t bytes, FromArrow(arrow::util::ReferencedBufferSize(*batch),
                                                          "write", options_.file.path));
    part_bytes_ += bytes;
  }
  if (part_bytes_ >= options_.part_bytes ||
      clock_->Now() - *part_began_ >= options_.part_interval) {
    return FinishPart();
  }
  return writer_->rows();
}

absl::StatusOr<int64_t> FileOutput::FinishPart() {
  if (part_began_.has_value()) {
    part_began_ = std::nullopt;
    part_bytes_ = 0;
    BRAID_RETURN_IF_ERROR(WriteError(writer_->FinishPart()));
  }
  return writer_ == nullptr ? 0 : writer_->rows();
}

absl::StatusOr<std::string> FileOutput::Close() {
  if (writer_ == nullptr) {
    return absl::FailedPreconditionError("no rows were written (expected at least one)");
  }
  BRAID_RETURN_IF_ERROR(WriteError(writer_->Finish()));
  return options_.file.path;
}

absl::StatusOr<std::string> FileOutput::Upload() {
  if (options_.object.empty()) {
    return options_.file.path;
  }
  BRAID_RETURN_IF_ERROR(WithField(kPathField, UploadFiles()));
  return absl::StrCat("s3://", options_.object);
}

void FileOutput::Discard() {
  writer_ = nullptr;
  const absl::Status removed =
      DataWriter::RemovePartial(options_.file.path, options_.file.signature);
  if (!removed.ok()) {
    Log(LogModule::kJobs)
        .warn("cannot remove parts of an output: {}", std::string(removed.message()));
  } else if (!options_.object.empty()) {
    // The directory has nothing but this output, whose path may end with '/'.
    const fs::path output = std::string(absl::StripSuffix(options_.file.path, "/"));
    const absl::Status cleared = RemoveTree(output.parent_path());
    if (!cleared.ok()) {
      Log(LogModule::kJobs)
          .warn("cannot remove an uploaded output: {}", std::string(cleared.message()));
    }
  }
}

absl::Status FileOutput::CheckObject(const Options& options) {
  if (options.object.empty() || options.file.overwrite) {
    return absl::OkStatus();
  }
  const absl::StatusOr<bool> exists = options.store->Exists(options.object);
  if (!exists.ok()) {
    return WithField(kPathField, exists.status());
  }
  return *exists ? absl::AlreadyExistsError(absl::StrCat(
                       kPathField, ": 's3://", Excerpt(options.object),
                       "' already exists (choose another path, or set overwrite: true)"))
                 : absl::OkStatus();
}

absl::Status FileOutput::UploadFiles() const {
  std::error_code error;
  if (!fs::is_directory(options_.file.path, error)) {
    return options_.store->Upload(options_.file.path, options_.object);
  }
  for (fs::directory_iterator child(options_.file.path, error), end; !error && child != end;
       child.increment(error)) {
    BRAID_RETURN_IF_ERROR(options_.store->Upload(
        child->path(), absl::StrCat(options_.object, "/", child->path().filename().native())));
  }
  return error ? FileError(error.value(), "list", options_.file.path) : absl::OkStatus();
}

absl::Status FileOutput::Check(const Options& options,
                               const std::vector<std::shared_ptr<arrow::Field>>& kept,
                               const std::vector<std::string>& names) {
  BRAID_RETURN_IF_ERROR(WithField(kPathField, DataWriter::Check(options.file)));
  BRAID_RETURN_IF_ERROR(CheckObject(options));
  arrow::FieldVector columns = kept;
  std::set<std::string> column_names;
  for (const std::shared_ptr<arrow::Field>& field : kept) {
    column_names.insert(field->name());
  }
  for (const auto& [output, column] : ChooseOutputs(options.outputs, names)) {
    if (std::find(names.begin(), names.end(), output) == names.end()) {
      return UnknownOutput(output, names);
    }
    if (!column_names.insert(column).second) {
      return InvalidField(kOutputsField,
                          absl::StrCat("two columns are named '", Excerpt(column),
                                       "' (expected unique names of outputs and kept columns)"));
    }
    // All formats can store numbers, whichever type the output has.
    columns.push_back(arrow::field(column, arrow::float32()));
  }
  return CheckColumns(options.file, columns, kept.size());
}

absl::StatusOr<std::shared_ptr<arrow::Table>> FileOutput::MakeTable(
    const InputRows& rows, const InferenceResult& result) const {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::ChunkedArray>> columns;
  if (rows.kept != nullptr) {
    const auto& kept = *static_cast<const arrow::RecordBatch*>(rows.kept.get());
    for (int c = 0; c < kept.num_columns(); ++c) {
      fields.push_back(kept.schema()->field(c));
      columns.push_back(std::make_shared<arrow::ChunkedArray>(kept.column(c)));
    }
  }
  const std::vector<std::string> names = NamesOf(result.outputs);
  for (const auto& [name, column] : ChooseOutputs(options_.outputs, names)) {
    const auto output = std::find_if(result.outputs.begin(), result.outputs.end(),
                                     [&](const GatheredTensor& one) { return one.name == name; });
    if (output == result.outputs.end()) {
      return UnknownOutput(name, names);
    }
    BRAID_ASSIGN_OR_RETURN(std::shared_ptr<arrow::ChunkedArray> array,
                           ColumnOfOutput(*output, rows.count));
    fields.push_back(arrow::field(column, array->type(), /*nullable=*/false));
    columns.push_back(std::move(array));
  }
  return arrow::Table::Make(arrow::schema(std::move(fields)), std::move(columns), rows.count);
}

absl::Status FileOutput::Begin(const std::shared_ptr<arrow::Schema>& schema, size_t kept) {
  if (writer_ == nullptr) {
    BRAID_RETURN_IF_ERROR(CheckColumns(options_.file, schema->fields(), kept));
    absl::StatusOr<std::unique_ptr<DataWriter>> writer = DataWriter::Open(options_.file, schema);
    if (!writer.ok()) {
      return WithField(absl::IsInvalidArgument(writer.status()) ? kOutputField : kPathField,
                       writer.status());
    }
    writer_ = *std::move(writer);
    return absl::OkStatus();
  }
  if (!schema->Equals(*writer_->schema(), /*check_metadata=*/false)) {
    return InvalidField(kOutputField,
                        SchemaDifference(*schema, *writer_->schema(), "the rows before"));
  }
  return absl::OkStatus();
}

}  // namespace braid

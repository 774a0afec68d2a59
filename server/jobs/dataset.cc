#include "server/jobs/dataset.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "arrow/record_batch.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/data_paths.h"
#include "server/data/encoded/bytes_column.h"
#include "server/data/encoded/decode_rows.h"
#include "server/data/encoded/file_reader.h"
#include "server/storage/checksum.h"

namespace braid {
namespace {

// Returns the field of an entry of the list "inputs" or "targets".
std::string FieldOfColumn(const DatasetOptions& options, absl::string_view list, size_t index) {
  return options.columns_field.empty()
             ? options.path_field
             : absl::StrCat(options.columns_field, ".", list, "[", index, "]");
}

// Returns the field of an entry whose decoding is wrong.
std::string FieldOfDecode(const DatasetOptions& options, absl::string_view list, size_t index) {
  return options.decode_field.empty()
             ? FieldOfColumn(options, list, index)
             : absl::StrCat(options.decode_field, ".", list, "[", index, "]");
}

const Column* FindColumn(const DataSource& source, const TensorColumn& tensor) {
  if (tensor.columns.size() != 1) {
    return nullptr;
  }
  const auto found = std::ranges::find(source.columns(), tensor.columns.front(), &Column::name);
  return found == source.columns().end() ? nullptr : &*found;
}

// Makes the decoders of a dataset's columns.
class DecoderMaker {
 public:
  // `roots`: directories with the files that rows may name. `folder`: where relative paths in the
  // rows start.
  DecoderMaker(const DatasetOptions& options, const std::vector<std::string>& roots,
               std::string folder, Dataset* dataset)
      : options_(options),
        dataset_(dataset),
        roots_(roots),
        folder_(std::move(folder)),
        copy_(dataset->source->copy()),
        files_(std::make_shared<const FileReader>(folder_, roots, copy_)) {}

  // Adds the decoder of a column of bytes. `input`: one of the model, which may have its own.
  absl::Status Add(const ColumnDecode& decode, bool input, const std::string& field,
                   TensorColumn* tensor) {
    const Column* const column = FindColumn(*dataset_->source, *tensor);
    const bool wanted = decode.spec || decode.evaluation || decode.paths;
    if (!wanted && column != nullptr && column->lists && input) {
      return AddPadding(field, tensor);
    }
    if (!wanted && (column == nullptr || !column->bytes)) {
      return absl::OkStatus();
    }
    std::string path_column;
    if (column != nullptr) {
      path_column = dataset_->source->PathColumn(column->name);
      tensor->files = decode.paths || !path_column.empty() ? files_ : nullptr;
    }
    BRAID_ASSIGN_OR_RETURN(tensor->decoder, Choose(decode, input, field, *tensor));
    if (tensor->decoder != nullptr && !path_column.empty()) {
      tensor->user_column = tensor->columns.front();
      tensor->columns = {std::move(path_column)};
    }
    if (tensor->decoder != nullptr && (tensor->type.has_value() || tensor->scale != 1)) {
      return InvalidField(absl::StrCat(field, ".datatype"),
                          absl::StrCat("given for '", Excerpt(tensor->name),
                                       "', which is decoded (remove it, and add to_float to the "
                                       "transforms)"));
    }
    return absl::OkStatus();
  }

 private:
  // Adds the padding of a column of lists, if the model's configuration has one for its input.
  absl::Status AddPadding(const std::string& field, TensorColumn* tensor) {
    if (options_.model == nullptr) {
      return absl::OkStatus();
    }
    BRAID_ASSIGN_OR_RETURN(const ModelConfig config, options_.model());
    const auto spec = std::ranges::find(config.inputs, tensor->name, &TensorSpec::name);
    if (spec == config.inputs.end() || !spec->pad) {
      return absl::OkStatus();
    }
    if (tensor->type.has_value() || tensor->scale != 1) {
      return InvalidField(absl::StrCat(field, ".datatype"),
                          absl::StrCat("given for '", Excerpt(tensor->name),
                                       "', which is padded (remove it, and store the lists with "
                                       "the input's datatype)"));
    }
    absl::StrAppend(&dataset_->decoding, tensor->name, "\n", spec->pad_json, "\n");
    tensor->decoder = spec->padding;
    return absl::OkStatus();
  }

  using MadeDecoder = absl::StatusOr<std::shared_ptr<const Decoder>>;

  // Makes a decoder. A tokenizer in the dataset's folder may be a link, which must stay in the
  // roots, like a link among the data files.
  MadeDecoder Make(const DecodeSpec& spec, const std::string& field) {
    std::vector<std::string> directories = options_.decode_directories;
    const auto* const text = std::get_if<TextSpec>(&spec);
    bool leaves = false;
    if (text != nullptr) {
      const std::filesystem::path file = std::filesystem::path(folder_) / text->tokenizer;
      std::error_code error;
      leaves = std::filesystem::exists(file, error) && !ResolvesBelowAny(file, roots_);
    }
    if (!leaves) {
      directories.push_back(folder_);
    }
    MadeDecoder decoder = MakeDecoder(spec, directories, field);
    if (leaves && absl::IsNotFound(decoder.status())) {
      return WithField(absl::StrCat(field, ".tokenizer"),
                       OutsideRootsError(text->tokenizer, roots_));
    }
    return decoder.ok() || copy_ == nullptr ? std::move(decoder)
                                            : copy_->NameObjects(decoder.status());
  }

  // Returns null if there is no decoder, which is an error of the column.
  MadeDecoder Choose(const ColumnDecode& decode, bool input, const std::string& field,
                     const TensorColumn& tensor) {
    const std::string own_field = absl::StrCat(field, ".decode");
    if (options_.evaluation && decode.evaluation) {
      return Make(*decode.evaluation, absl::StrCat(field, ".evaluation_decode"));
    }
    if (decode.spec && !options_.evaluation) {
      return Make(*decode.spec, own_field);
    }
    if (input && options_.model != nullptr) {
      BRAID_ASSIGN_OR_RETURN(const ModelConfig config, options_.model());
      const auto spec = std::ranges::find(config.inputs, tensor.name, &TensorSpec::name);
      if (spec != config.inputs.end() && spec->decoder != nullptr) {
        absl::StrAppend(&dataset_->decoding, tensor.name, "\n", spec->decode_json, "\n");
        return spec->decoder;
      }
    }
    if (!decode.spec) {
      return decode.paths ? MadeDecoder(InvalidField(
                                own_field, absl::StrCat("no image or text (set one of them: the "
                                                        "model has no decode.",
                                                        Excerpt(tensor.name), ")")))
                          : nullptr;
    }
    if (const absl::string_view random = RandomTransform(*decode.spec); !random.empty()) {
      return InvalidField(absl::StrCat(field, ".evaluation_decode"),
                          absl::StrCat("missing (expected transforms that are not random, because "
                                       "decode has ",
                                       random, ")"));
    }
    return Make(*decode.spec, own_field);
  }

  const DatasetOptions& options_;
  Dataset* const dataset_;
  const std::vector<std::string> roots_;
  const std::string folder_;
  const std::shared_ptr<const CopiedSet> copy_;  // null: the data is local
  const std::shared_ptr<const FileReader> files_;
};

absl::StatusOr<std::vector<RowType>> RowTypesOf(const DataSource& source,
                                                const std::vector<TensorColumn>& tensors,
                                                const DatasetOptions& options,
                                                absl::string_view list) {
  std::vector<RowType> rows;
  for (size_t i = 0; i < tensors.size(); ++i) {
    absl::StatusOr<RowType> row = TensorRowType(source.columns(), tensors[i]);
    if (!row.ok()) {
      return WithField(FieldOfColumn(options, list, i), row.status());
    }
    rows.push_back(*std::move(row));
  }
  return rows;
}

absl::Status CheckFirstRowOf(const DatasetOptions& options, const Dataset& dataset,
                             const std::vector<TensorColumn>& tensors, absl::string_view list,
                             const CancelCheck& check_cancelled) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorColumn& tensor = tensors[i];
    if (tensor.decoder == nullptr) {
      continue;
    }
    BRAID_RETURN_IF_ERROR(check_cancelled());
    BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<RowScan> scan,
                           dataset.source->Scan({.columns = tensor.columns, .batch_rows = 1}));
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::RecordBatch> batch, scan->Next());
    if (batch == nullptr) {
      return absl::OkStatus();  // Rows are counted elsewhere.
    }
    std::vector<int64_t> rows = {0};
    std::vector<SkippedRow> skipped;
    const EncodedColumn column = ColumnOfBatch(tensor, batch, 0);
    const absl::Status decoded =
        DecodeColumns({column}, {}, &rows, options.skip_unreadable ? &skipped : nullptr).status();
    if (!decoded.ok()) {
      return WithField(FieldOfColumn(options, list, i), decoded);
    }
  }
  return absl::OkStatus();
}

// `changed`: words before "changed". `expected`: what the same thing is.
absl::Status Changed(const DatasetOptions& options, absl::string_view changed,
                     absl::string_view expected) {
  return absl::FailedPreconditionError(
      absl::StrCat(options.path_field, ": ", changed,
                   " changed since the job started (expected the same ", expected, ")"));
}

constexpr absl::Duration kLogInterval = absl::Seconds(10);
// In the identity of data, between the checksums of the files and of the model's decoding.
constexpr char kSeparator[] = "+";

}  // namespace

absl::Status CheckSameData(const DatasetOptions& options, const Dataset& dataset,
                           std::string* identity) {
  const std::string data = dataset.source->Identity();
  const std::string files = ChecksumOf(data);
  const std::string decoding = dataset.decoding.empty() ? "" : ChecksumOf(dataset.decoding);
  if (identity->empty()) {
    *identity = decoding.empty() ? files : absl::StrCat(files, kSeparator, decoding);
    return absl::OkStatus();
  }
  const std::pair<std::string, std::string> stored =
      absl::StrSplit(*identity, absl::MaxSplits(kSeparator, 1));
  const bool same_files = stored.first == files;
  if (same_files && stored.second == decoding) {
    return absl::OkStatus();
  }
  const std::string name = absl::StrCat("'", Excerpt(options.path), "'");
  std::string changed;
  if (!decoding.empty() && stored.second.empty() && !same_files) {
    // Earlier versions stored one checksum of both.
    if (*identity == ChecksumOf(data + dataset.decoding)) {
      return absl::OkStatus();
    }
    changed = absl::StrCat(name, " or the model's decode parameters have");
  } else if (same_files) {
    changed = "the model's decode parameters have";
  } else if (stored.second == decoding) {
    changed = absl::StrCat(name, " has");
  } else {
    changed = absl::StrCat(name, " and the model's decode parameters have");
  }
  return Changed(options, changed, same_files ? "parameters" : "file");
}

absl::Status CheckSameSource(const DatasetOptions& options, const DataDirectories& directories,
                             const std::string& identity) {
  const absl::StatusOr<std::unique_ptr<DataSource>> source =
      OpenDataSource(options.path, directories, options.path_field);
  // NOT_FOUND and INVALID_ARGUMENT: what could be opened before is missing or of another kind.
  if (!source.ok() && !absl::IsNotFound(source.status()) &&
      !absl::IsInvalidArgument(source.status())) {
    return source.status();
  }
  return source.ok() && (*source)->Identity() == identity
             ? absl::OkStatus()
             : Changed(options, absl::StrCat("'", Excerpt(options.path), "' has"), "file");
}

absl::StatusOr<Dataset> OpenDataset(const DatasetOptions& options,
                                    const DataDirectories& directories,
                                    const CopyProgress& progress) {
  Dataset dataset;
  BRAID_ASSIGN_OR_RETURN(dataset.source,
                         OpenDataSource(options.path, directories, options.path_field, progress));
  const std::shared_ptr<const CopiedSet> copy = dataset.source->copy();
  const std::vector<std::string> roots =
      copy == nullptr ? directories.roots : std::vector<std::string>{copy->path};
  BRAID_ASSIGN_OR_RETURN(std::string folder, FolderOf(copy == nullptr ? options.path : copy->path,
                                                      roots, options.path_field));
  dataset.input_columns = options.inputs;
  dataset.target_columns = options.targets;
  DecoderMaker maker(options, roots, std::move(folder), &dataset);
  const ColumnDecode none;
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    BRAID_RETURN_IF_ERROR(
        maker.Add(i < options.input_decode.size() ? options.input_decode[i] : none,
                  /*input=*/true, FieldOfDecode(options, "inputs", i), &dataset.input_columns[i]));
  }
  for (size_t i = 0; i < options.targets.size(); ++i) {
    BRAID_RETURN_IF_ERROR(maker.Add(
        i < options.target_decode.size() ? options.target_decode[i] : none,
        /*input=*/false, FieldOfDecode(options, "targets", i), &dataset.target_columns[i]));
  }
  BRAID_ASSIGN_OR_RETURN(dataset.inputs,
                         RowTypesOf(*dataset.source, dataset.input_columns, options, "inputs"));
  BRAID_ASSIGN_OR_RETURN(dataset.targets,
                         RowTypesOf(*dataset.source, dataset.target_columns, options, "targets"));
  return dataset;
}

absl::Status CheckFirstRow(const DatasetOptions& options, const Dataset& dataset,
                           const CancelCheck& check_cancelled) {
  BRAID_RETURN_IF_ERROR(
      CheckFirstRowOf(options, dataset, dataset.input_columns, "inputs", check_cancelled));
  return CheckFirstRowOf(options, dataset, dataset.target_columns, "targets", check_cancelled);
}

absl::Status CheckBatchMemory(const Dataset& dataset, int64_t batch_size, int64_t memory,
                              absl::string_view field) {
  int64_t row_bytes = 0;
  for (const auto* const tensors : {&dataset.input_columns, &dataset.target_columns}) {
    for (const TensorColumn& tensor : *tensors) {
      if (tensor.decoder != nullptr) {
        for (const Decoder::Output& output : tensor.decoder->outputs()) {
          row_bytes += static_cast<int64_t>(RowBytes(output.row).value_or(0));
        }
      }
    }
  }
  const int64_t rows = std::min(batch_size, dataset.source->KnownRows().value_or(batch_size));
  if (row_bytes == 0 || rows <= memory / 2 / row_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(field, ": ", batch_size, " (", rows, " decoded rows of ", row_bytes,
                   " bytes take more than half of the host's free memory, ", memory,
                   " bytes; expected at most ", memory / 2 / row_bytes, " rows)"));
}

CopyProgress LogCopying(JobContext* context) {
  return [context, copied = int64_t{0}, next = absl::InfinitePast()](int64_t bytes,
                                                                     int64_t total) mutable {
    if (context->stop() != JobStop::kNone) {
      return absl::CancelledError("stopped while the data was copied");
    }
    if (bytes > copied) {
      copied = bytes;
      context->NoteActivity();
    }
    if (const absl::Time now = absl::Now(); now >= next && bytes < total) {
      next = now + kLogInterval;
      context->AddLog(JobLogLevel::kInfo,
                      absl::StrCat("copying the data from S3: ", bytes, " of ", total, " bytes"));
    }
    return absl::OkStatus();
  };
}

}  // namespace braid

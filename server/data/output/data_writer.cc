#include "server/data/output/data_writer.h"

#include <climits>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "arrow/buffer.h"
#include "arrow/io/memory.h"
#include "arrow/ipc/reader.h"
#include "arrow/ipc/writer.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/arrow_status.h"
#include "server/data/column.h"
#include "server/storage/directory_lock.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"
#include "server/storage/manifest.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kVersion = 1;
constexpr absl::string_view kPartial = ".partial";
constexpr int64_t kMaxManifest = int64_t{64} << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

std::string WithoutSlash(const std::string& path) {
  return std::string(absl::StripSuffix(path, "/"));
}

// Returns the last name of a path, for messages.
std::string NameOf(absl::string_view path) {
  return std::string(Excerpt(fs::path(WithoutSlash(std::string(path))).filename().native()));
}

std::string PartialOf(const std::string& path) {
  return absl::StrCat(WithoutSlash(path), kPartial);
}

std::string DataOf(const std::string& path) { return absl::StrCat(PartialOf(path), "/data"); }

std::string ManifestOf(const std::string& path) {
  return absl::StrCat(PartialOf(path), "/manifest.json");
}

struct OutputManifest {
  std::string signature;
  std::string schema;  // serialized by Arrow, in base64
  std::vector<OutputPart> parts;
};

std::string OutputManifestText(const OutputManifest& manifest) {
  json parts = json::array();
  for (const OutputPart& part : manifest.parts) {
    json files = json::array();
    for (const StoredFile& file : part.files) {
      files.push_back({{"bytes", file.bytes}, {"checksum", file.checksum}});
    }
    parts.push_back({{"rows", part.rows}, {"files", std::move(files)}});
  }
  return json{{"version", kVersion},
              {"signature", manifest.signature},
              {"schema", manifest.schema},
              {"parts", std::move(parts)}}
      .dump();
}

// Returns nullopt if the manifest does not exist.
absl::StatusOr<std::optional<OutputManifest>> ReadOutputManifest(const std::string& path) {
  if (!Exists(path)) {
    return std::nullopt;
  }
  BRAID_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxManifest));
  try {
    const json parsed = json::parse(text);
    if (parsed.at("version").get<int>() != kVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", path, "' has another version than ", kVersion, " (expected that of this server)"));
    }
    OutputManifest manifest{
        parsed.at("signature").get<std::string>(), parsed.at("schema").get<std::string>(), {}};
    for (const json& part : parsed.at("parts")) {
      OutputPart read{part.at("rows").get<int64_t>(), {}};
      for (const json& file : part.at("files")) {
        read.files.push_back(
            {file.at("bytes").get<int64_t>(), file.at("checksum").get<std::string>()});
      }
      manifest.parts.push_back(std::move(read));
    }
    return manifest;
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat("'", path, "' is damaged: ", error.what()));
  }
}

absl::StatusOr<std::string> SchemaText(const arrow::Schema& schema, absl::string_view path) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::Buffer> bytes,
                         FromArrow(arrow::ipc::SerializeSchema(schema), "write", path));
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
}

absl::StatusOr<std::shared_ptr<arrow::Schema>> ParseSchema(absl::string_view text,
                                                           absl::string_view path) {
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes)) {
    return absl::DataLossError(absl::StrCat("'", path, "' is damaged: schema"));
  }
  arrow::io::BufferReader reader(arrow::Buffer::FromString(std::move(bytes)));
  return FromArrow(arrow::ipc::ReadSchema(&reader, nullptr), "read", path);
}

// Returns true unless the output is a directory of .npy files.
bool IsOneFile(const DataWriter::Options& options) { return !absl::EndsWith(options.path, "/"); }

absl::StatusOr<DataFormat> FormatOf(const DataWriter::Options& options) {
  if (!options.format.has_value()) {
    return DataFormatOf(options.path);
  }
  if (*options.format != DataFormat::kNpy && absl::EndsWith(options.path, "/")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", NameOf(options.path), "/' is a directory (expected a file, or .npy as format)"));
  }
  return *options.format;
}

absl::StatusOr<std::unique_ptr<RowEncoder>> OpenEncoder(const DataWriter::Options& options,
                                                        std::shared_ptr<arrow::Schema> schema,
                                                        const std::vector<OutputPart>& parts) {
  BRAID_ASSIGN_OR_RETURN(const DataFormat format, FormatOf(options));
  const std::string directory = PartialOf(options.path);
  switch (format) {
    case DataFormat::kParquet:
      return OpenParquetEncoder(directory, std::move(schema), parts);
    case DataFormat::kNpy:
      return OpenNpyEncoder(directory, std::move(schema), IsOneFile(options), parts);
    case DataFormat::kJsonLines:
      break;
  }
  return OpenJsonLinesEncoder(directory, *schema, parts);
}

// Checks that the output can be created at its place.
absl::Status CheckPlace(const std::string& path) {
  const fs::path partial = PartialOf(path);
  const size_t length = partial.filename().native().size();
  if (length > NAME_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("'", Excerpt(partial.stem().native()),
                                                   "' is too long (expected a name of at most ",
                                                   NAME_MAX - kPartial.size(), " bytes)"));
  }
  std::error_code error;
  for (fs::path parent = partial.parent_path(); parent != parent.root_path();
       parent = parent.parent_path()) {
    const fs::file_status status = fs::status(parent, error);
    if (fs::exists(status)) {
      return fs::is_directory(status)
                 ? absl::OkStatus()
                 : absl::InvalidArgumentError(absl::StrCat("'", Excerpt(parent.native()),
                                                           "' is a file (expected a directory)"));
    }
  }
  return absl::OkStatus();
}

// Returns the manifest of an output that can be continued or is complete; nullopt if a new one may
// be started.
absl::StatusOr<std::optional<OutputManifest>> FindOutput(const DataWriter::Options& options) {
  BRAID_RETURN_IF_ERROR(FormatOf(options).status());
  BRAID_RETURN_IF_ERROR(CheckPlace(options.path));
  BRAID_ASSIGN_OR_RETURN(std::optional<OutputManifest> manifest,
                         ReadOutputManifest(ManifestOf(options.path)));
  if (manifest.has_value() && manifest->signature != options.signature) {
    if (!options.overwrite) {
      return absl::AlreadyExistsError(absl::StrCat(
          "'", PartialOf(options.path),
          "' has the output of another job (choose another path, or set overwrite: true)"));
    }
    manifest = std::nullopt;
  }
  const std::string place = WithoutSlash(options.path);
  // Without "data", the output is complete and at its place.
  const bool complete = manifest.has_value() && !Exists(DataOf(options.path));
  if (Exists(place) && !options.overwrite && !complete) {
    return absl::AlreadyExistsError(
        absl::StrCat("'", place, "' already exists (choose another path, or set overwrite: true)"));
  }
  return manifest;
}

// Removes all but the lock. The manifest goes first: "data" without it is nobody's.
absl::Status ClearPartial(const std::string& path) {
  BRAID_RETURN_IF_ERROR(RemoveTree(ManifestOf(path)));
  BRAID_RETURN_IF_ERROR(RemoveTree(DataOf(path)));
  return RemoveTree(absl::StrCat(PartialOf(path), "/footers"));
}

absl::StatusOr<FileDescriptor> LockOutput(const std::string& path) {
  absl::StatusOr<FileDescriptor> lock = LockDirectory(PartialOf(path));
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", WithoutSlash(path), "' is being written by another job (use another path)"));
  }
  return lock;
}

}  // namespace

std::vector<StoredFile> PartsOfFile(const std::vector<OutputPart>& parts, size_t file) {
  std::vector<StoredFile> files;
  for (const OutputPart& part : parts) {
    if (file < part.files.size()) {
      files.push_back(part.files[file]);
    }
  }
  return files;
}

absl::StatusOr<DataFormat> DataFormatOf(absl::string_view path) {
  if (absl::EndsWith(path, ".parquet")) {
    return DataFormat::kParquet;
  }
  if (absl::EndsWith(path, ".npy") || absl::EndsWith(path, "/")) {
    return DataFormat::kNpy;
  }
  if (absl::EndsWith(path, ".jsonl")) {
    return DataFormat::kJsonLines;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", NameOf(path),
      "' has no known suffix (expected .parquet, .npy or .jsonl, or '/' at the end for a directory "
      "of .npy files)"));
}

absl::Status DataWriter::Check(const Options& options) { return FindOutput(options).status(); }

absl::Status DataWriter::CheckColumns(const Options& options, int count) {
  BRAID_ASSIGN_OR_RETURN(const DataFormat format, FormatOf(options));
  return format == DataFormat::kNpy ? CheckNpyColumns(count, IsOneFile(options)) : absl::OkStatus();
}

absl::Status DataWriter::CheckColumn(const Options& options, const arrow::Field& field) {
  BRAID_ASSIGN_OR_RETURN(const DataFormat format, FormatOf(options));
  switch (format) {
    case DataFormat::kParquet:
      return CheckParquetColumn(field);
    case DataFormat::kNpy:
      return CheckNpyColumn(field, IsOneFile(options));
    case DataFormat::kJsonLines:
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DataWriter>> DataWriter::Continue(Options options) {
  BRAID_ASSIGN_OR_RETURN(std::optional<OutputManifest> manifest, FindOutput(options));
  if (!manifest.has_value()) {
    return nullptr;
  }
  BRAID_ASSIGN_OR_RETURN(FileDescriptor lock, LockOutput(options.path));
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<arrow::Schema> schema,
                         ParseSchema(manifest->schema, ManifestOf(options.path)));
  std::unique_ptr<RowEncoder> encoder;
  if (Exists(DataOf(options.path))) {
    BRAID_ASSIGN_OR_RETURN(encoder, OpenEncoder(options, schema, manifest->parts));
  }
  return std::unique_ptr<DataWriter>(new DataWriter(std::move(options), std::move(lock),
                                                    std::move(schema), std::move(encoder),
                                                    std::move(manifest->parts)));
}

absl::StatusOr<std::unique_ptr<DataWriter>> DataWriter::Open(
    Options options, std::shared_ptr<arrow::Schema> schema) {
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<DataWriter> writer, Continue(options));
  if (writer != nullptr) {
    if (!writer->schema()->Equals(*schema, /*check_metadata=*/false)) {
      return absl::InvalidArgumentError(
          SchemaDifference(*schema, *writer->schema(),
                           absl::StrCat("the interrupted output '", PartialOf(options.path), "'")));
    }
    return writer;
  }
  const std::string partial = PartialOf(options.path);
  BRAID_RETURN_IF_ERROR(MakeDirectories(partial));
  BRAID_ASSIGN_OR_RETURN(FileDescriptor lock, LockOutput(options.path));
  BRAID_RETURN_IF_ERROR(ClearPartial(options.path));
  absl::StatusOr<std::unique_ptr<RowEncoder>> encoder = OpenEncoder(options, schema, {});
  if (!encoder.ok()) {
    RemoveTree(partial).IgnoreError();
    return std::move(encoder).status();
  }
  writer.reset(new DataWriter(std::move(options), std::move(lock), std::move(schema),
                              *std::move(encoder), {}));
  // The manifest comes after "data": without "data", the output is complete.
  BRAID_RETURN_IF_ERROR(SyncDirectory(partial));
  BRAID_RETURN_IF_ERROR(writer->SaveManifest());
  return writer;
}

DataWriter::DataWriter(Options options, FileDescriptor lock, std::shared_ptr<arrow::Schema> schema,
                       std::unique_ptr<RowEncoder> encoder, std::vector<OutputPart> parts)
    : options_(std::move(options)),
      lock_(std::move(lock)),
      schema_(std::move(schema)),
      encoder_(std::move(encoder)),
      parts_(std::move(parts)) {
  for (const OutputPart& part : parts_) {
    rows_ += part.rows;
  }
}

DataWriter::~DataWriter() = default;

absl::Status DataWriter::Write(const std::shared_ptr<arrow::RecordBatch>& batch) {
  BRAID_RETURN_IF_ERROR(encoder_->Write(*batch));
  part_rows_ += batch->num_rows();
  return absl::OkStatus();
}

absl::Status DataWriter::FinishPart() {
  OutputPart part{part_rows_, {}};
  BRAID_ASSIGN_OR_RETURN(part.files, encoder_->FinishPart());
  parts_.push_back(std::move(part));
  BRAID_RETURN_IF_ERROR(SaveManifest());
  rows_ += std::exchange(part_rows_, 0);
  return absl::OkStatus();
}

absl::Status DataWriter::Finish() {
  if (encoder_ == nullptr) {
    return absl::OkStatus();
  }
  if (part_rows_ > 0 || parts_.empty()) {
    BRAID_RETURN_IF_ERROR(FinishPart());
  }
  BRAID_RETURN_IF_ERROR(encoder_->Finish(parts_));
  const std::string place = WithoutSlash(options_.path);
  const std::string data = DataOf(options_.path);
  std::error_code error;
  if (fs::is_directory(place, error) || (Exists(place) && fs::is_directory(data, error))) {
    // rename() replaces files only.
    BRAID_RETURN_IF_ERROR(RemoveTree(place));
  }
  return RenameDurably(data, place);
}

absl::Status DataWriter::RemovePartial(const std::string& path, const std::string& signature) {
  BRAID_ASSIGN_OR_RETURN(const std::optional<OutputManifest> manifest,
                         ReadOutputManifest(ManifestOf(path)));
  if (!manifest.has_value() || manifest->signature != signature) {
    return absl::OkStatus();
  }
  // Without "data", the manifest would mean that the output is complete.
  BRAID_RETURN_IF_ERROR(RemoveTree(ManifestOf(path)));
  return RemoveTree(PartialOf(path));
}

absl::Status DataWriter::SaveManifest() const {
  const std::string path = ManifestOf(options_.path);
  BRAID_ASSIGN_OR_RETURN(std::string schema, SchemaText(*schema_, path));
  return WriteFileDurably(path,
                          OutputManifestText({options_.signature, std::move(schema), parts_}));
}

}  // namespace braid

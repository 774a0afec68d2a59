#include "server/rpc/data/data_messages.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/preview.h"
#include "server/remote/object_path.h"

namespace braid {
namespace {

constexpr int64_t kDefaultRows = 10;
constexpr int64_t kMaxRows = 1000;
constexpr size_t kMaxPreviewBytes = size_t{4} << 20;

void WriteDataset(const std::string& path, const DataSource& source, braid::v1::Dataset* dataset) {
  dataset->set_path(path);
  dataset->set_format(std::string(source.format()));
  for (const Column& column : source.columns()) {
    braid::v1::Column* const added = dataset->add_columns();
    added->set_name(column.name);
    added->set_type(column.arrow_type);
    if (column.row.has_value()) {
      added->set_datatype(std::string(DataTypeName(column.row->type)));
      added->mutable_shape()->Add(column.row->shape.begin(), column.row->shape.end());
    }
  }
  if (const auto rows = source.KnownRows()) {
    dataset->set_rows(*rows);
  }
}

}  // namespace

absl::Status DescribeDataset(const DataDirectories& directories,
                             const braid::v1::GetDatasetRequest& request,
                             braid::v1::GetDatasetResponse* response) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> source,
                         OpenDataSource(request.path(), directories, "path"));
  WriteDataset(request.path(), *source, response->mutable_dataset());
  return absl::OkStatus();
}

absl::Status ListDatasets(const DataDirectories& directories,
                          const braid::v1::ListDatasetsRequest& request,
                          braid::v1::ListDatasetsResponse* response) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<ListedData> listed,
                         IsObjectPath(request.directory())
                             ? ListRemoteData(request.directory(), directories.remote, "directory")
                             : ListData(request.directory(), directories.roots, "directory"));
  for (const ListedData& data : listed) {
    braid::v1::ListDatasetsResponse::Entry* const entry = response->add_entries();
    entry->set_name(data.name);
    entry->set_is_directory(data.directory);
    entry->set_bytes(data.bytes);
  }
  return absl::OkStatus();
}

absl::Status PreviewDataset(const DataDirectories& directories,
                            const braid::v1::PreviewDatasetRequest& request,
                            braid::v1::PreviewDatasetResponse* response) {
  if (request.rows() < 0 || request.rows() > kMaxRows) {
    return InvalidField("rows", absl::StrCat(request.rows(), " (expected 0 to ", kMaxRows, ")"));
  }
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> source,
                         OpenDataSource(request.path(), directories, "path"));
  WriteDataset(request.path(), *source, response->mutable_dataset());
  const std::vector<std::string> columns(request.columns().begin(), request.columns().end());
  if (const auto indices = ColumnIndices(source->columns(), columns); !indices.ok()) {
    return InvalidField("columns", indices.status().message());
  }
  BRAID_ASSIGN_OR_RETURN(
      std::vector<std::string> rows,
      PreviewRows(source.get(), columns, request.rows() == 0 ? kDefaultRows : request.rows(),
                  kMaxPreviewBytes));
  for (std::string& row : rows) {
    response->add_rows(std::move(row));
  }
  return absl::OkStatus();
}

absl::StatusOr<DatasetManifest> ReadManifest(const braid::v1::StartDatasetUploadRequest& request) {
  DatasetManifest manifest{request.dataset(), {}};
  for (int i = 0; i < request.files_size(); ++i) {
    const braid::v1::DatasetFile& file = request.files(i);
    const auto sha256 = ParseSha256(file.sha256());
    if (!sha256) {
      return InvalidField(absl::StrCat("files[", i, "].sha256"),
                          absl::StrCat("'", absl::Utf8SafeCHexEscape(Excerpt(file.sha256())),
                                       "' (expected 64 hexadecimal digits)"));
    }
    manifest.files.push_back({file.path(), file.bytes(), *sha256});
  }
  return manifest;
}

}  // namespace braid

#include "server/jobs/dataset.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/checksum.h"

namespace braid {
namespace {

absl::StatusOr<std::vector<RowType>> RowTypesOf(const DataSource& source,
                                                const std::vector<TensorColumn>& tensors,
                                                const DatasetOptions& options,
                                                absl::string_view list) {
  std::vector<RowType> rows;
  for (size_t i = 0; i < tensors.size(); ++i) {
    absl::StatusOr<RowType> row = TensorRowType(source.columns(), tensors[i]);
    if (!row.ok()) {
      return InField(options.columns_field.empty()
                         ? options.path_field
                         : absl::StrCat(options.columns_field, ".", list, "[", i, "]"),
                     row.status());
    }
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace

absl::Status CheckSameData(const DatasetOptions& options, const DataSource& source,
                           std::string* identity) {
  const std::string found = ChecksumOf(source.Identity());
  if (identity->empty()) {
    *identity = found;
  }
  if (*identity != found) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.path_field, ": '", Excerpt(options.path),
                     "' has changed since the job started (expected the same file)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Dataset> OpenDataset(const DatasetOptions& options,
                                    const DataDirectories& directories) {
  Dataset dataset;
  BRAID_ASSIGN_OR_RETURN(dataset.source,
                         OpenDataSource(options.path, directories, options.path_field));
  BRAID_ASSIGN_OR_RETURN(dataset.inputs,
                         RowTypesOf(*dataset.source, options.inputs, options, "inputs"));
  BRAID_ASSIGN_OR_RETURN(dataset.targets,
                         RowTypesOf(*dataset.source, options.targets, options, "targets"));
  return dataset;
}

}  // namespace braid

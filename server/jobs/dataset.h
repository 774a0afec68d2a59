// Dataset of a job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data/column.h"
#include "server/data/data_source.h"
#include "server/data/open_data_source.h"
#include "server/data/tensor_column.h"

namespace braid {

struct DatasetOptions {
  std::string path;
  std::vector<TensorColumn> inputs;
  std::vector<TensorColumn> targets;
  // Field of the job's specification that `path` comes from, for errors: "spec.train.data.path".
  std::string path_field;
  // Field with the lists "inputs" and "targets": "spec.train.data". Empty: the columns were chosen
  // for another dataset, so errors about them name `path_field`.
  std::string columns_field;
};

struct Dataset {
  std::unique_ptr<DataSource> source;
  // Types of the rows of DatasetOptions::inputs and targets.
  std::vector<RowType> inputs;
  std::vector<RowType> targets;
};

// Sets `identity`, what a job remembers of its data, if it is empty. Otherwise FAILED_PRECONDITION
// naming the path if the source is another or its files have changed.
absl::Status CheckSameData(const DatasetOptions& options, const DataSource& source,
                           std::string* identity);

// Opens the data and checks that the columns are tensors. Blocks on the disk. Errors start with the
// field: those of OpenDataSource() and TensorRowType().
absl::StatusOr<Dataset> OpenDataset(const DatasetOptions& options,
                                    const DataDirectories& directories);

}  // namespace braid

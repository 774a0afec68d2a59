// Arrays as a data source: each array is a column with the rows in dim 0.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data/data_file.h"
#include "server/data/data_source.h"

namespace braid {

// Opens array files, for example one .npz file or several .npy files. INVALID_ARGUMENT if the
// arrays differ in their numbers of rows or two have the same name; errors as ReadArrays().
absl::StatusOr<std::unique_ptr<DataSource>> OpenArraySource(
    const std::vector<std::shared_ptr<const DataFile>>& files,
    const std::string& scratch_directory);

}  // namespace braid

// Check of a job's columns against the model, before the job runs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/data/column.h"
#include "server/data/tensor_column.h"
#include "server/models/model_config.h"

namespace braid {

// Columns of a list in a job's specification.
struct NamedColumns {
  std::string field;  // "spec.train.data.inputs"
  const std::vector<TensorColumn>& tensors;
  const std::vector<RowType>& rows;  // one per column
};

// Checks that the columns feed the inputs of the model, with their datatypes and shapes, and that
// all inputs without a default are fed, by a column or by a decoder's further tensors.
// INVALID_ARGUMENT naming <field>[i].name, .column or .datatype; for a missing input the first
// list's field.
absl::Status CheckInputColumns(const std::vector<NamedColumns>& lists, const ModelConfig& config);

}  // namespace braid

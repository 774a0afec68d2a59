// What an evaluation gave, as a table and as JSON.
#pragma once

#include <string>

#include "braid/v1/training.pb.h"
#include "nlohmann/json.hpp"

namespace braid::cli {

// A line for each figure, and the confusion matrix, if there is one, below: a row for each target
// class, a column for each class predicted.
std::string FormatEvaluation(const v1::EvaluateResponse& result);

// Loss, if there is one, rows, step, the metrics as an object, the confusion matrix as an array of
// its rows.
nlohmann::ordered_json EvaluationJson(const v1::EvaluateResponse& result);

}  // namespace braid::cli

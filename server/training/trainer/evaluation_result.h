// Result of an evaluation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace braid {

struct EvaluationResult {
  std::optional<double> loss;  // NaN if no target counts; nullopt if the client computes the loss
  int64_t rows = 0;
  // By name; NaN if no target counts.
  std::map<std::string, double> metrics;
  // Row-major [classes, classes]: the count of targets of class t predicted as class p is at
  // t * classes + p. Empty unless requested.
  std::vector<int64_t> confusion;
};

}  // namespace braid

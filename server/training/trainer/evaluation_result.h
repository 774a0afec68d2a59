// What an evaluation finds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace braid {

struct EvaluationResult {
  std::optional<double> loss;  // NaN where nothing counts; none where the client computes it
  int64_t rows = 0;
  // By name; NaN where nothing counts.
  std::map<std::string, double> metrics;
  // Row-major [classes, classes]: targets of class t predicted as class p at t * classes + p. Empty
  // unless asked for.
  std::vector<int64_t> confusion;
};

}  // namespace braid

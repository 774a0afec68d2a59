#include "client/cli/evaluation.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

// In the names' order.
std::map<std::string, double> Metrics(const v1::EvaluateResponse& result) {
  return {result.metrics().begin(), result.metrics().end()};
}

// Its rows; none if the reply has no square of numbers.
std::vector<std::vector<int64_t>> Confusion(const v1::EvaluateResponse& result) {
  const int count = result.confusion_size();
  int classes = 0;
  while (classes * classes < count) ++classes;
  if (classes * classes != count) return {};
  std::vector<std::vector<int64_t>> rows;
  for (auto row = result.confusion().begin(); row != result.confusion().end(); row += classes) {
    rows.emplace_back(row, row + classes);
  }
  return rows;
}

}  // namespace

std::string FormatEvaluation(const v1::EvaluateResponse& result) {
  std::vector<std::vector<std::string>> rows = {{"metric", "value"}};
  if (result.has_loss()) rows.push_back({"loss", absl::StrCat(result.loss())});
  for (const auto& [name, value] : Metrics(result)) rows.push_back({name, absl::StrCat(value)});
  rows.push_back({"rows", absl::StrCat(result.rows())});
  rows.push_back({"step", absl::StrCat(result.step())});
  std::string text = FormatTable(rows);
  const std::vector<std::vector<int64_t>> confusion = Confusion(result);
  if (confusion.empty()) return text;
  rows = {{"target"}};
  for (size_t c = 0; c < confusion.size(); ++c) rows[0].push_back(absl::StrCat("as ", c));
  for (size_t c = 0; c < confusion.size(); ++c) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(absl::StrCat(c));
    for (int64_t count : confusion[c]) row.push_back(absl::StrCat(count));
  }
  return absl::StrCat(text, "\n", FormatTable(rows));
}

nlohmann::ordered_json EvaluationJson(const v1::EvaluateResponse& result) {
  nlohmann::ordered_json json;
  if (result.has_loss()) json["loss"] = result.loss();
  json["rows"] = result.rows();
  json["step"] = result.step();
  json["metrics"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : Metrics(result)) json["metrics"][name] = value;
  if (result.confusion_size() > 0) json["confusion"] = Confusion(result);
  return json;
}

}  // namespace braid::cli

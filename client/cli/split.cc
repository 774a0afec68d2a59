#include "client/cli/split.h"

#include "absl/strings/str_cat.h"
#include "client/cli/elements.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

// The tensors' names and shapes, with `part` for a dim 0 of `total`.
std::string Shapes(const std::vector<NamedShape>& tensors, int64_t total, int64_t part) {
  std::string text;
  for (const auto& [name, shape] : tensors) {
    std::vector<int64_t> seen = shape;
    if (!seen.empty() && seen[0] == total) seen[0] = part;
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", FormatShape(seen));
  }
  return text;
}

}  // namespace

std::string FormatSplit(const std::vector<NamedShape>& inputs,
                        const std::vector<NamedShape>& outputs,
                        absl::Span<const v1::Chunk> chunks) {
  if (chunks.empty()) return "";
  int64_t total = 0;
  for (const v1::Chunk& chunk : chunks) total += chunk.rows();
  std::vector<std::vector<std::string>> rows = {{"device", "rows", "in", "out"}};
  auto add = [&](const std::string& device, int64_t part) {
    rows.push_back(
        {device, absl::StrCat(part), Shapes(inputs, total, part), Shapes(outputs, total, part)});
  };
  for (const v1::Chunk& chunk : chunks) add(chunk.device(), chunk.rows());
  add("outside", total);
  return FormatTable(rows);
}

}  // namespace braid::cli

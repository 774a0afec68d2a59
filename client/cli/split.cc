#include "client/cli/split.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/elements.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

// The tensors' names and shapes, with `part` for a dim 0 of `total`.
std::string NamedShapes(const std::vector<NamedShape>& tensors, int64_t total, int64_t part) {
  std::string text;
  for (const auto& [name, shape] : tensors) {
    std::vector<int64_t> seen = shape;
    if (!seen.empty() && seen[0] == total) seen[0] = part;
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", FormatShape(seen));
  }
  return text;
}

using Shapes = google::protobuf::RepeatedPtrField<std::string>;

// What a shape as in "[10, 5]" of `rows` rows is in the whole batch.
std::string Whole(const std::string& shape, int64_t rows, int64_t total) {
  const size_t end = shape.find_first_of(",]");
  int64_t dim = -1;
  const bool parsed = end != std::string::npos && absl::SimpleAtoi(shape.substr(1, end - 1), &dim);
  return parsed && dim == rows ? absl::StrCat("[", total, shape.substr(end)) : shape;
}

std::string JoinWhole(const Shapes& shapes, int64_t rows, int64_t total) {
  return absl::StrJoin(shapes, ", ", [&](std::string* out, const std::string& shape) {
    absl::StrAppend(out, Whole(shape, rows, total));
  });
}

std::string FormatStage(const std::vector<v1::Chunk>& chunks) {
  std::vector<std::vector<std::string>> rows = {{"device", "rows", "in", "out"}};
  int64_t total = 0;
  for (const v1::Chunk& chunk : chunks) {
    total += chunk.rows();
    rows.push_back({chunk.device(), absl::StrCat(chunk.rows()),
                    absl::StrJoin(chunk.input_shapes(), ", "),
                    absl::StrJoin(chunk.output_shapes(), ", ")});
  }
  const v1::Chunk& first = chunks.front();
  Shapes outputs = first.output_shapes();
  for (std::string& shape : outputs) {
    if (shape == "[]") shape = absl::StrCat("[", chunks.size(), "]");
  }
  rows.push_back({"outside", absl::StrCat(total),
                  JoinWhole(first.input_shapes(), first.rows(), total),
                  JoinWhole(outputs, first.rows(), total)});
  return FormatTable(rows);
}

}  // namespace

std::string FormatSplit(absl::Span<const v1::Chunk> chunks) {
  // In the order in which the batch goes through them.
  std::vector<std::vector<v1::Chunk>> stages;
  for (const v1::Chunk& chunk : chunks) {
    auto stage = std::find_if(stages.begin(), stages.end(), [&](const auto& other) {
      return other.front().stage() == chunk.stage();
    });
    if (stage == stages.end()) stage = stages.insert(stage, std::vector<v1::Chunk>());
    stage->push_back(chunk);
  }
  std::string text;
  for (const std::vector<v1::Chunk>& stage : stages) {
    const std::string& path = stage.front().stage();
    if (!path.empty()) absl::StrAppend(&text, Printable(absl::StrCat("stage ", path)), "\n");
    text += FormatStage(stage);
  }
  return text;
}

std::string FormatSplit(const std::vector<NamedShape>& inputs,
                        const std::vector<NamedShape>& outputs,
                        absl::Span<const v1::Chunk> chunks) {
  if (chunks.empty()) return "";
  int64_t total = 0;
  for (const v1::Chunk& chunk : chunks) total += chunk.rows();
  std::vector<std::vector<std::string>> rows = {{"device", "rows", "in", "out"}};
  auto add = [&](const std::string& device, int64_t part) {
    rows.push_back({device, absl::StrCat(part), NamedShapes(inputs, total, part),
                    NamedShapes(outputs, total, part)});
  };
  for (const v1::Chunk& chunk : chunks) add(chunk.device(), chunk.rows());
  add("outside", total);
  return FormatTable(rows);
}

}  // namespace braid::cli

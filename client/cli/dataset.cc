#include "client/cli/dataset.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/elements.h"

namespace braid::cli {
namespace {

client::Tensor GatherRows(const std::string& name, const NpyFile& file,
                          absl::Span<const int64_t> indices) {
  const NpyHeader& header = file.header();
  const absl::string_view bytes = file.bytes();
  const size_t row_size = bytes.size() / static_cast<size_t>(header.shape[0]);
  client::Tensor tensor{name, header.datatype, header.shape, {}};
  tensor.shape[0] = static_cast<int64_t>(indices.size());
  tensor.data.resize(indices.size() * row_size);
  char* out = tensor.data.data();
  for (int64_t index : indices) {
    std::memcpy(out, bytes.data() + static_cast<size_t>(index) * row_size, row_size);
    out += row_size;
  }
  return tensor;
}

}  // namespace

absl::StatusOr<NamedFile> ParseNamedFile(const std::string& argument) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == argument.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", argument, "\" is not NAME=FILE, such as x=images.npy"));
  }
  return NamedFile{argument.substr(0, equals), argument.substr(equals + 1)};
}

absl::StatusOr<std::vector<NamedFile>> ParseNamedFiles(const std::vector<std::string>& arguments) {
  std::vector<NamedFile> files;
  for (const std::string& argument : arguments) {
    absl::StatusOr<NamedFile> file = ParseNamedFile(argument);
    if (!file.ok()) return file.status();
    if (std::any_of(files.begin(), files.end(),
                    [&](const NamedFile& other) { return other.name == file->name; })) {
      return absl::InvalidArgumentError(absl::StrCat("\"", file->name, "\" is given twice"));
    }
    files.push_back(*std::move(file));
  }
  return files;
}

absl::StatusOr<Dataset> Dataset::Open(const std::vector<NamedFile>& inputs,
                                      const std::vector<NamedFile>& targets) {
  Dataset dataset;
  for (const NamedFile& input : inputs) {
    if (absl::Status status = dataset.Add(input); !status.ok()) return status;
  }
  dataset.inputs_ = inputs.size();
  for (const NamedFile& target : targets) {
    if (absl::Status status = dataset.Add(target); !status.ok()) return status;
  }
  return dataset;
}

absl::Status Dataset::Add(const NamedFile& named) {
  absl::StatusOr<NpyFile> file = NpyFile::Open(named.path);
  if (!file.ok()) return file.status();
  const std::vector<int64_t>& shape = file->header().shape;
  if (shape.empty() || shape[0] == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(named.path, ": has shape ", FormatShape(shape), ", which is no rows"));
  }
  if (!columns_.empty() && shape[0] != rows_) {
    return absl::InvalidArgumentError(absl::StrCat(named.path, ": has ", shape[0], " rows, \"",
                                                   columns_.front().name, "\" has ", rows_));
  }
  rows_ = shape[0];
  columns_.push_back({named.name, *std::move(file)});
  return absl::OkStatus();
}

client::Batch Dataset::Gather(absl::Span<const int64_t> indices) const {
  client::Batch batch;
  for (size_t i = 0; i < columns_.size(); ++i) {
    std::vector<client::Tensor>& to = i < inputs_ ? batch.inputs : batch.targets;
    to.push_back(GatherRows(columns_[i].name, columns_[i].file, indices));
  }
  return batch;
}

std::vector<int64_t> EpochOrder(int64_t rows, bool shuffle, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return order;
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(epoch)};
  std::mt19937_64 random(sequence);
  // Not std::shuffle, whose result differs between standard libraries. The modulo's bias is
  // rows / 2^64.
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace braid::cli

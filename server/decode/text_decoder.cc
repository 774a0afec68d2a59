#include "server/decode/text_decoder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/decode/tokenizers/braid_tokenizers.h"

namespace braid {
namespace {

struct FreeTokenizer {
  void operator()(BraidTokenizer* tokenizer) const { braid_tokenizer_free(tokenizer); }
};
using TokenizerPtr = std::unique_ptr<BraidTokenizer, FreeTokenizer>;

// Token IDs in the memory of the tokenizer.
class TokenIds {
 public:
  explicit TokenIds(BraidTokens tokens) : tokens_(tokens) {}
  ~TokenIds() {
    if (tokens_.data != nullptr) {
      braid_tokens_free(tokens_);
    }
  }
  TokenIds(TokenIds&& other) noexcept : tokens_(std::exchange(other.tokens_, {})) {}
  TokenIds& operator=(TokenIds&&) = delete;

  absl::Span<const uint32_t> ids() const { return {tokens_.data, tokens_.size}; }

 private:
  BraidTokens tokens_;
};

std::string TakeText(BraidText text) {
  std::string taken(Excerpt({text.data, text.size}, 512));
  braid_text_free(text);
  return taken;
}

// Returns a tensor of INT64 whose values are 0.
absl::StatusOr<HostTensor> NewTensor(const std::string& name, size_t rows, size_t width) {
  HostTensor tensor;
  tensor.name = name;
  tensor.type = DataType::kInt64;
  tensor.shape = {static_cast<int64_t>(rows), static_cast<int64_t>(width)};
  const std::optional<size_t> bytes = BytesOf(tensor.type, tensor.shape);
  std::shared_ptr<int64_t[]> memory(
      bytes.has_value() ? new (std::nothrow) int64_t[*bytes / sizeof(int64_t)]() : nullptr);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for tokens of shape ", ShapeString(tensor.shape)));
  }
  tensor.data = memory.get();
  tensor.bytes = *bytes;
  tensor.owner = std::move(memory);
  return tensor;
}

int64_t* Values(const HostTensor& tensor) {
  // Nobody else has the new tensor yet.
  return static_cast<int64_t*>(const_cast<void*>(tensor.data));
}

class TextDecoder final : public Decoder {
 public:
  TextDecoder(const TextSpec& spec, TokenizerPtr tokenizer,
              const BraidTokenizerProperties& properties)
      : max_length_(static_cast<size_t>(spec.max_length)),
        fixed_length_(spec.pad_to_max_length),
        pad_left_(properties.pad_left),
        pad_token_(spec.pad_token >= 0 ? spec.pad_token
                                       : std::max<int64_t>(properties.pad_token, 0)),
        tokenizer_(std::move(tokenizer)) {
    const RowType row{.type = DataType::kInt64,
                      .shape = {fixed_length_ ? spec.max_length : kUnknownDim}};
    outputs_.push_back({.input = "", .row = row});
    if (!spec.mask.empty()) {
      outputs_.push_back({.input = spec.mask, .row = row});
    }
  }

  const std::vector<Output>& outputs() const override { return outputs_; }

  absl::StatusOr<std::vector<HostTensor>> Decode(
      absl::Span<const EncodedRow> rows, const DecodeOptions& options,
      std::vector<UnreadableRow>* unreadable) const override {
    std::vector<TokenIds> texts;
    texts.reserve(rows.size());
    size_t width = fixed_length_ ? max_length_ : 1;
    int64_t longest = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      absl::StatusOr<TokenIds> ids = Encode(rows[i]);
      if (ids.ok()) {
        if (ids->ids().size() > width) {
          width = ids->ids().size();
          longest = rows[i].row;
        }
        texts.push_back(*std::move(ids));
      } else if (unreadable != nullptr) {
        unreadable->push_back({static_cast<int64_t>(i), std::move(ids).status()});
      } else {
        return std::move(ids).status();
      }
    }
    if (!fixed_length_) {
      BRAID_RETURN_IF_ERROR(CheckBytes(texts.size(), width, longest, options.max_bytes));
    }
    return Pad(texts, width);
  }

 private:
  absl::StatusOr<TokenIds> Encode(const EncodedRow& row) const {
    BraidTokens tokens{};
    BraidText error{};
    if (!braid_tokenizer_encode(tokenizer_.get(), row.bytes.data(), row.bytes.size(), &tokens,
                                &error)) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row.row, ": ", TakeText(error)));
    }
    TokenIds ids(tokens);
    if (max_length_ > 0 && ids.ids().size() > max_length_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "row ", row.row, ": the text has ", ids.ids().size(),
          " tokens (expected at most max_length, ", max_length_, "; truncate cuts longer texts)"));
    }
    return ids;
  }

  // Checks the bytes of `rows` rows that are padded to the row `longest`, of `width` tokens.
  absl::Status CheckBytes(size_t rows, size_t width, int64_t longest, size_t max_bytes) const {
    const size_t row_bytes = width * outputs_.size() * sizeof(int64_t);
    if (rows <= max_bytes / row_bytes) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("row ", longest, ": padding ", rows, " rows to ", width, " tokens takes ",
                     row_bytes, " bytes per row (expected at most ", max_bytes,
                     " bytes per batch; set max_length, or use a smaller batch_size)"));
  }

  absl::StatusOr<std::vector<HostTensor>> Pad(absl::Span<const TokenIds> texts,
                                              size_t width) const {
    std::vector<HostTensor> tensors;
    for (const Output& output : outputs_) {
      BRAID_ASSIGN_OR_RETURN(HostTensor tensor, NewTensor(output.input, texts.size(), width));
      tensors.push_back(std::move(tensor));
    }
    int64_t* const ids = Values(tensors.front());
    int64_t* const mask = tensors.size() > 1 ? Values(tensors.back()) : nullptr;
    std::fill_n(ids, texts.size() * width, pad_token_);
    for (size_t i = 0; i < texts.size(); ++i) {
      const absl::Span<const uint32_t> row = texts[i].ids();
      const size_t begin = i * width + (pad_left_ ? width - row.size() : 0);
      std::copy(row.begin(), row.end(), ids + begin);
      if (mask != nullptr) {
        std::fill_n(mask + begin, row.size(), 1);
      }
    }
    return tensors;
  }

  const size_t max_length_;
  const bool fixed_length_;
  const bool pad_left_;
  const int64_t pad_token_;
  const TokenizerPtr tokenizer_;
  std::vector<Output> outputs_;  // Constant after construction.
};

// Returns the path of the tokenizer's file in the first directory that has it.
absl::StatusOr<std::string> FindFile(const std::string& name,
                                     const std::vector<std::string>& directories,
                                     absl::string_view field) {
  const std::filesystem::path path(name);
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end()) {
    return InvalidField(
        field, absl::StrCat("'", Excerpt(name), "' (expected a relative path without ..)"));
  }
  for (const std::string& directory : directories) {
    const std::filesystem::path file = std::filesystem::path(directory) / path;
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error)) {
      return file.string();
    }
  }
  return absl::NotFoundError(
      absl::StrCat(field, ": no file '", Excerpt(name), "' in ", absl::StrJoin(directories, ", ")));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Decoder>> MakeTextDecoder(
    const TextSpec& spec, const std::vector<std::string>& directories, absl::string_view field) {
  const std::string file_field = absl::StrCat(field, ".tokenizer");
  BRAID_ASSIGN_OR_RETURN(const std::string path, FindFile(spec.tokenizer, directories, file_field));
  const BraidTokenizerOptions options{
      .path = path.data(),
      .path_size = path.size(),
      .truncate_to = spec.truncate ? static_cast<size_t>(spec.max_length) : 0,
      .special_tokens = spec.special_tokens};
  BraidTokenizerProperties properties{};
  BraidText error{};
  TokenizerPtr tokenizer(braid_tokenizer_load(&options, &properties, &error));
  if (tokenizer == nullptr) {
    return InvalidField(file_field, absl::StrCat("'", path, "': ", TakeText(error)));
  }
  if (spec.max_length > 0 && static_cast<size_t>(spec.max_length) < properties.added_tokens) {
    return InvalidField(absl::StrCat(field, ".max_length"),
                        absl::StrCat(spec.max_length, " (expected at least ",
                                     properties.added_tokens, ", the special tokens of a text)"));
  }
  return std::make_shared<const TextDecoder>(spec, std::move(tokenizer), properties);
}

}  // namespace braid

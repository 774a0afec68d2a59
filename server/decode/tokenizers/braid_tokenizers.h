// Hugging Face's tokenizers, which are written in Rust (src/lib.rs).
//
// A loaded tokenizer is not changed, so that threads may share it. All work is done on the calling
// thread. A panic in Rust becomes an error.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct BraidTokenizer;

struct BraidTokenizerOptions {
  // File in the format of tokenizer.json.
  const char* path;
  size_t path_size;
  // Cuts texts to this number of tokens, special tokens included. 0: does not cut. A number below
  // added_tokens has the effect of added_tokens.
  size_t truncate_to;
  // Adds special tokens, such as [CLS], to each text.
  bool special_tokens;
};

struct BraidTokenizerProperties {
  // Number of special tokens that are added to each text.
  size_t added_tokens;
  // Token for padding: that of the file's padding, else of [PAD] or <pad>. -1: none of them.
  int64_t pad_token;
  // True: the file's padding precedes the text.
  bool pad_left;
};

// Must be freed.
struct BraidTokens {
  uint32_t* data;
  size_t size;
};

// UTF-8 without a terminating zero. Must be freed.
struct BraidText {
  char* data;
  size_t size;
};

// Loads a tokenizer, which must be freed. Replaces the file's truncation and padding, except for
// the direction of its truncation. On an error, returns null and sets only `error`.
BraidTokenizer* braid_tokenizer_load(const BraidTokenizerOptions* options,
                                     BraidTokenizerProperties* properties, BraidText* error);

// Converts a UTF-8 text. On an error, returns false and sets only `error`.
bool braid_tokenizer_encode(const BraidTokenizer* tokenizer, const char* text, size_t size,
                            BraidTokens* tokens, BraidText* error);

void braid_tokenizer_free(BraidTokenizer* tokenizer);
void braid_tokens_free(BraidTokens tokens);
void braid_text_free(BraidText text);

}  // extern "C"

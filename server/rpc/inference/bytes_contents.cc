#include "server/rpc/inference/bytes_contents.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/base/status.h"

namespace braid {
namespace {

using google::protobuf::FieldDescriptor;

constexpr size_t kLengthBytes = 4;

// Reads a length from the first kLengthBytes of `data`.
size_t LengthOf(absl::string_view data) {
  size_t length = 0;
  for (size_t b = 0; b < kLengthBytes; ++b) {
    length |= static_cast<size_t>(static_cast<unsigned char>(data[b])) << (8 * b);
  }
  return length;
}

absl::Status WrongCount(int64_t found, int64_t expected, const std::string& field,
                        const std::string& name) {
  return InvalidField(field, absl::StrCat("has ", found, " elements for '", name, "' (expected ",
                                          expected, ", one per row)"));
}

}  // namespace

absl::StatusOr<std::vector<EncodedRow>> SplitBytes(absl::string_view data, int64_t count,
                                                   const std::string& field,
                                                   const std::string& name) {
  std::vector<EncodedRow> rows;
  while (!data.empty()) {
    const auto row = static_cast<int64_t>(rows.size());
    if (row == count) {
      return WrongCount(row + 1, count, field, name);
    }
    const bool has_length = data.size() >= kLengthBytes;
    const size_t length = has_length ? LengthOf(data) : 0;
    if (!has_length || data.size() - kLengthBytes < length) {
      return InvalidField(field,
                          absl::StrCat("ends within element ", row, " of '", name, "' (expected ",
                                       has_length ? absl::StrCat(length, " bytes after its length")
                                                  : "its length in 4 bytes",
                                       ")"));
    }
    rows.push_back({data.substr(kLengthBytes, length), row});
    data.remove_prefix(kLengthBytes + length);
  }
  if (static_cast<int64_t>(rows.size()) != count) {
    return WrongCount(static_cast<int64_t>(rows.size()), count, field, name);
  }
  return rows;
}

absl::StatusOr<std::vector<EncodedRow>> ReadBytesContents(
    const inference::InferTensorContents& contents, int64_t count, const std::string& field,
    const std::string& name) {
  constexpr absl::string_view kExpected = "bytes_contents";
  std::vector<const FieldDescriptor*> set;
  contents.GetReflection()->ListFields(contents, &set);
  for (const FieldDescriptor* other : set) {
    if (other->name() != kExpected) {
      return InvalidField(
          absl::StrCat(field, ".", other->name()),
          absl::StrCat("set for '", name, "' (expected ", kExpected, " for BYTES)"));
    }
  }
  if (contents.bytes_contents_size() != count) {
    return WrongCount(contents.bytes_contents_size(), count, field, name);
  }
  std::vector<EncodedRow> rows;
  rows.reserve(static_cast<size_t>(count));
  for (const std::string& bytes : contents.bytes_contents()) {
    rows.push_back({bytes, static_cast<int64_t>(rows.size())});
  }
  return rows;
}

}  // namespace braid

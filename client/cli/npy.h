// Reads and writes .npy files.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/npy_header.h"
#include "client/cpp/tensor.h"

namespace braid::cli {

// An array in a file that is mapped into memory: opening one costs the same whatever its size. The
// file must not be truncated while it is open. Thread-compatible.
class NpyFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED if it cannot be opened, INVALID_ARGUMENT if it is not a file
  // that ParseNpyHeader takes or if its size is not what the header says. Messages begin with
  // `path`.
  static absl::StatusOr<NpyFile> Open(const std::string& path);

  NpyFile(NpyFile&& other) noexcept;
  NpyFile& operator=(NpyFile&&) = delete;
  ~NpyFile();

  const NpyHeader& header() const { return header_; }
  // The elements: row-major, little-endian. Valid as long as this object.
  absl::string_view bytes() const { return mapped_.substr(header_.data_offset); }
  // A copy, under this name.
  client::Tensor ToTensor(std::string name) const;

 private:
  explicit NpyFile(absl::string_view mapped) : mapped_(mapped) {}

  // The whole file; empty after a move.
  absl::string_view mapped_;
  NpyHeader header_;
};

// Writes the tensor, in place of what is at `path`. A BF16 tensor is written as FP32, exactly.
// INVALID_ARGUMENT if the bytes are not what datatype and shape say; UNKNOWN or the code for errno
// if the file cannot be written.
absl::Status WriteNpy(const std::string& path, const client::Tensor& tensor);

}  // namespace braid::cli

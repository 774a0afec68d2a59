// Safetensors files, which PyTorch, JAX and others read:
// https://github.com/huggingface/safetensors
//
//   8 bytes    length of the header, little-endian
//   header     see safetensors_header.h; padded with spaces to a multiple of 8 bytes
//   data       bytes of the tensors, without gaps
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/byte_sink.h"
#include "server/base/host_tensor.h"
#include "server/storage/input_file.h"
#include "server/storage/safetensors_header.h"

namespace braid {

using SafetensorsMetadata = std::map<std::string, std::string>;

// Writes tensors without copying them. Tensors with larger elements come first, so that all are
// aligned, otherwise in the order of `tensors`. INVALID_ARGUMENT, before anything is written, for a
// duplicate name, invalid UTF-8 and a byte size that does not match the shape.
absl::Status WriteSafetensors(ByteSink* sink, const std::vector<HostTensor>& tensors,
                              const SafetensorsMetadata& metadata = {});

// Returns the number of bytes that WriteSafetensors() writes.
absl::StatusOr<int64_t> SafetensorsBytes(const std::vector<HostTensor>& tensors,
                                         const SafetensorsMetadata& metadata = {});

// Safetensors file for reading. Thread-safe.
class SafetensorsFile {
 public:
  // Validates the header. NOT_FOUND if the file does not exist, DATA_LOSS if it is invalid.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // In the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  // Position of the data in the file, to which the entries' ranges refer.
  size_t data_offset() const { return head_bytes_; }

  // Reads the bytes of one of the entries into `to`. DATA_LOSS if the file became shorter.
  absl::Status Read(const SafetensorsEntry& entry, void* to) const;

 private:
  SafetensorsFile(InputFile file, SafetensorsHeader header, size_t head_bytes);

  InputFile file_;
  SafetensorsHeader header_;
  size_t head_bytes_;
};

// Reads all tensors of a file, in the order of their data, each into memory of its own. Errors as
// SafetensorsFile.
absl::StatusOr<std::vector<HostTensor>> ReadSafetensors(const std::string& path);

}  // namespace braid

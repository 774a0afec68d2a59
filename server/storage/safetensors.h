// Tensors in a file that PyTorch, JAX and others read: https://github.com/huggingface/safetensors
//
//   8 bytes    the header's length, little-endian
//   header     see safetensors_header.h; filled up with spaces to a multiple of 8 bytes
//   data       the tensors' bytes, one after the other
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

// Copies no tensor. The larger the elements of a tensor, the earlier it comes, so that all are
// aligned; else in the order of `tensors`. INVALID_ARGUMENT, before anything is written, for a name
// that comes twice, for text that is no UTF-8, and for bytes that are not as many as the shape
// says.
absl::Status WriteSafetensors(ByteSink* sink, const std::vector<HostTensor>& tensors,
                              const SafetensorsMetadata& metadata = {});

// How many bytes that writes.
absl::StatusOr<int64_t> SafetensorsBytes(const std::vector<HostTensor>& tensors,
                                         const SafetensorsMetadata& metadata = {});

// One that is read. Thread-safe.
class SafetensorsFile {
 public:
  // Takes nothing on trust: NOT_FOUND if there is no file, DATA_LOSS saying what is wrong with it.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }

  // One of the entries' bytes. `to` has room for them. DATA_LOSS if the file became shorter.
  absl::Status Read(const SafetensorsEntry& entry, void* to) const;

 private:
  SafetensorsFile(InputFile file, SafetensorsHeader header, size_t head_bytes);

  InputFile file_;
  SafetensorsHeader header_;
  size_t head_bytes_;
};

// All of the file's tensors, in the order of their bytes, each in memory of its own. Fails as
// SafetensorsFile does.
absl::StatusOr<std::vector<HostTensor>> ReadSafetensors(const std::string& path);

}  // namespace braid

// Tensors in a file that PyTorch, JAX and others read: https://github.com/huggingface/safetensors
//
//   8 bytes    the header's length, little-endian
//   header     see safetensors_header.h; filled up with spaces to a multiple of 8 bytes
//   data       the tensors' bytes, one after the other
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/byte_sink.h"
#include "server/base/host_tensor.h"

namespace braid {

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsFile {
  // In the order of their bytes.
  std::vector<HostTensor> tensors;
  SafetensorsMetadata metadata;
};

// Copies no tensor. The larger the elements of a tensor, the earlier it comes, so that all are
// aligned; else in the order of `tensors`. INVALID_ARGUMENT, before anything is written, for a name
// that comes twice, for text that is no UTF-8, and for bytes that are not as many as the shape
// says.
absl::Status WriteSafetensors(ByteSink* sink, const std::vector<HostTensor>& tensors,
                              const SafetensorsMetadata& metadata = {});

// How many bytes that writes.
absl::StatusOr<int64_t> SafetensorsBytes(const std::vector<HostTensor>& tensors,
                                         const SafetensorsMetadata& metadata = {});

// Reads the file into memory, where its tensors stay as long as one of them is there. Takes nothing
// on trust: NOT_FOUND if there is no file, DATA_LOSS saying what is wrong with it.
absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path);

}  // namespace braid

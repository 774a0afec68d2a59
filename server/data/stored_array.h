// Arrays in .npy, .npz, safetensors and IDX files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/host_tensor.h"
#include "server/data/data_file.h"

namespace braid {

// Array in a file, with the rows in dim 0.
struct StoredArray {
  std::string name;
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  // Maps the elements. Arrays that cannot be mapped in place (compressed or in big-endian order)
  // are first unpacked into a scratch file, which may take long.
  std::function<absl::StatusOr<std::shared_ptr<const MappedRange>>()> map;
};

// Returns true if `head`, the first bytes of a file, and the file's name are those of a file that
// ReadArrays() reads.
bool IsArrayFile(absl::string_view path, absl::string_view head);

// Lists the arrays of a file without reading their elements. The array of an .npy or IDX file is
// named as the file, without ".npy" or ".gz". Scratch files are created in `scratch_directory`.
// Errors name the file: INVALID_ARGUMENT for unsupported arrays, DATA_LOSS for a damaged file.
absl::StatusOr<std::vector<StoredArray>> ReadArrays(const std::shared_ptr<const DataFile>& file,
                                                    const std::string& scratch_directory);

// Maps an array into a tensor.
absl::StatusOr<HostTensor> MapTensor(const StoredArray& array,
                                     std::shared_ptr<const MappedRange>* range);

}  // namespace braid

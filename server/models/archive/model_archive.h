// Zip archives that PyTorch writes: reading, checksums, and the kind of model in them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}  // namespace caffe2::serialize

namespace braid {

// Zip archive in PyTorch's format, opened for reading. Not thread-safe.
class ModelArchive {
 public:
  // file: name of the file in errors; the default is the last component of `path`.
  // FAILED_PRECONDITION if it is not such an archive, has no central directory, or would be far
  // larger unpacked.
  static absl::StatusOr<std::unique_ptr<ModelArchive>> Open(const std::string& path,
                                                            std::string file = "");
  ~ModelArchive();

  const std::vector<std::string>& records() const { return records_; }
  bool Has(const std::string& record) const;
  // Returns the content of record `name`. FAILED_PRECONDITION if it is damaged.
  absl::StatusOr<std::string> Read(const std::string& name);
  // Reads all records and compares their checksums, which LibTorch's loaders do not do.
  // FAILED_PRECONDITION if one differs.
  absl::Status CheckContents();

 private:
  ModelArchive(std::string path, std::string file);
  absl::Status CheckSizes(uint64_t file_bytes);
  absl::Status ReadInto(const std::string& name, std::vector<char>* bytes);

  const std::string path_;
  const std::string file_;  // name in errors
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::vector<std::string> records_;
};

inline constexpr char kPairManifestRecord[] = "extra/train.json";

// Kind of a model.pt2.
enum class PackageKind { kPair, kExportedProgram, kAoti };
// Returns the kind of the package at `path` by the names of its records. kAoti for a folder and for
// unknown archives. FAILED_PRECONDITION if it is not an archive.
absl::StatusOr<PackageKind> KindOfPackage(const std::string& path);

// Returns a checksum of the names and checksums in the archive's central directory. Does not read
// the records. FAILED_PRECONDITION if there is no central directory.
absl::StatusOr<std::string> StoredChecksum(const std::string& path);

// FAILED_PRECONDITION if the file is not a TorchScript module, or damaged. The error says what kind
// of file it is.
absl::Status CheckTorchScriptArchive(const std::string& path);

}  // namespace braid

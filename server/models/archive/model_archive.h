// Whether a model's file is what its name says, before a loader reads it.
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

// A zip archive as PyTorch writes them. Used by one thread.
class ModelArchive {
 public:
  // FAILED_PRECONDITION that names the file, as `file` if that is not empty, and says what it is,
  // if it is none, has no directory, or would be far larger unpacked than it is.
  static absl::StatusOr<std::unique_ptr<ModelArchive>> Open(const std::string& path,
                                                            std::string file = "");
  ~ModelArchive();

  const std::vector<std::string>& records() const { return records_; }
  bool Has(const std::string& record) const;
  // What record `name` holds. FAILED_PRECONDITION if it is damaged.
  absl::StatusOr<std::string> Read(const std::string& name);
  // Reads all of it: FAILED_PRECONDITION if a record is not what was written, which LibTorch's
  // loaders do not ask.
  absl::Status CheckContents();

 private:
  ModelArchive(std::string path, std::string file);
  absl::Status CheckSizes(uint64_t file_bytes);
  absl::Status ReadInto(const std::string& name, std::vector<char>* bytes);

  const std::string path_;
  const std::string file_;  // its name, for messages
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::vector<std::string> records_;
};

inline constexpr char kPairManifestRecord[] = "extra/train.json";

// What a model.pt2 is, as far as its records tell.
enum class PackageKind { kPair, kExportedProgram, kAoti };
// kAoti for a folder, and for what is no package at all. FAILED_PRECONDITION if it is no archive.
absl::StatusOr<PackageKind> KindOfPackage(const std::string& path);

// Names the content of the archive at `path` by the names and checksums in its directory, without
// reading what it holds. FAILED_PRECONDITION if it has no directory.
absl::StatusOr<std::string> StoredChecksum(const std::string& path);

// FAILED_PRECONDITION that says what the file `path` is, if it is no TorchScript module, or a
// damaged one.
absl::Status CheckTorchScriptArchive(const std::string& path);

}  // namespace braid

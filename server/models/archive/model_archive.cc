#include "server/models/archive/model_archive.h"

#include <zip.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "caffe2/serialize/inline_container.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/checksum.h"

namespace braid {
namespace {

// Maximum ratio of unpacked to packed size, above kMinUnpackedLimit bytes. Tensors are not
// compressed and code has a ratio of about 10, so a larger ratio is a decompression bomb.
constexpr uint64_t kMaxUnpackRatio = 32;
constexpr uint64_t kMinUnpackedLimit = uint64_t{16} << 20;

absl::Status Wrong(absl::string_view file, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(file, " ", what));
}

// Returns the first sentence of an error of PyTorch's reader. The rest guesses at the cause.
absl::string_view CauseOf(const std::exception& failure) {
  const absl::string_view line = FirstLine(failure.what());
  return line.substr(0, line.find(". "));
}

// Checks the magic number.
absl::Status CheckMagic(const std::string& path, const std::string& file) {
  std::array<char, 4> start = {};
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(start.data(), start.size())) {
    return Wrong(file, "cannot be read, or is too short for an archive");
  }
  if (absl::string_view(start.data(), start.size()) == absl::string_view("PK\x03\x04", 4)) {
    return absl::OkStatus();
  }
  return Wrong(file, start[0] == '\x80'
                         ? "is a Python pickle (expected a module saved with torch.jit.save)"
                         : "is not a zip archive (expected a file that torch.jit.save, "
                           "torch.export.save or AOTInductor wrote)");
}

constexpr absl::string_view kUnreadableDirectory =
    "cannot read the zip archive's central directory (the file may be truncated)";

// Reads the CRC-32 of each record from the central directory, by name without the top folder.
absl::StatusOr<std::map<std::string, uint32_t>> ReadChecksums(const std::string& path) {
  int error = 0;
  zip_t* const archive = zip_open(path.c_str(), ZIP_RDONLY, &error);
  if (archive == nullptr) {
    return absl::FailedPreconditionError(kUnreadableDirectory);
  }
  const absl::Cleanup close = [archive] { zip_discard(archive); };
  std::map<std::string, uint32_t> checksums;
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t entry;
    zip_stat_init(&entry);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_CRC;
    if (zip_stat_index(archive, static_cast<zip_uint64_t>(i), 0, &entry) != 0 ||
        (entry.valid & kNeeded) != kNeeded) {
      return absl::FailedPreconditionError(kUnreadableDirectory);
    }
    const std::string name = entry.name;
    checksums[name.substr(name.find('/') + 1)] = entry.crc;
  }
  return checksums;
}

bool HoldsCompiled(const ModelArchive& archive) {
  return std::any_of(
      archive.records().begin(), archive.records().end(),
      [](const std::string& record) { return absl::StartsWith(record, "data/aotinductor/"); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelArchive>> ModelArchive::Open(const std::string& path,
                                                                 std::string file) {
  if (file.empty()) {
    file = std::filesystem::path(path).filename();
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Wrong(file, "is not a regular file");
  }
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    return Wrong(file, absl::StrCat("cannot be read: ", error.message()));
  }
  if (bytes == 0) {
    return Wrong(file, "is empty");
  }
  BRAID_RETURN_IF_ERROR(CheckMagic(path, file));
  std::unique_ptr<ModelArchive> archive(new ModelArchive(path, file));
  try {
    archive->reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path);
    archive->records_ = archive->reader_->getAllRecords();
    BRAID_RETURN_IF_ERROR(archive->CheckSizes(bytes));
  } catch (const std::exception& failure) {
    return Wrong(file,
                 absl::StrCat("cannot be loaded: its archive is damaged: ", CauseOf(failure)));
  }
  return archive;
}

ModelArchive::ModelArchive(std::string path, std::string file)
    : path_(std::move(path)), file_(std::move(file)) {}

ModelArchive::~ModelArchive() = default;

absl::Status ModelArchive::CheckSizes(uint64_t file_bytes) {
  uint64_t unpacked = 0;
  const uint64_t limit = std::max(kMinUnpackedLimit, kMaxUnpackRatio * file_bytes);
  for (const std::string& record : records_) {
    const uint64_t bytes = reader_->getRecordSize(record);
    if (bytes > limit - unpacked) {
      return Wrong(file_,
                   absl::StrCat("would unpack to more than ", limit, " bytes from ", file_bytes,
                                " (expected a ratio of at most ", kMaxUnpackRatio, ")"));
    }
    unpacked += bytes;
  }
  return absl::OkStatus();
}

bool ModelArchive::Has(const std::string& record) const {
  return std::find(records_.begin(), records_.end(), record) != records_.end();
}

absl::StatusOr<std::string> ModelArchive::Read(const std::string& name) {
  std::vector<char> bytes;
  BRAID_RETURN_IF_ERROR(ReadInto(name, &bytes));
  return std::string(bytes.begin(), bytes.end());
}

absl::Status ModelArchive::ReadInto(const std::string& name, std::vector<char>* bytes) {
  try {
    bytes->resize(reader_->getRecordSize(name));
    reader_->getRecord(name, bytes->data(), bytes->size());
    return absl::OkStatus();
  } catch (const std::exception& failure) {
    return Wrong(file_, absl::StrCat("is damaged at '", name, "': ", CauseOf(failure)));
  }
}

absl::Status ModelArchive::CheckContents() {
  const auto checksums = ReadChecksums(path_);
  if (!checksums.ok()) {
    return Wrong(file_, absl::StrCat("is damaged: ", checksums.status().message()));
  }
  std::vector<char> bytes;  // Reused for all records.
  for (const std::string& record : records_) {
    BRAID_RETURN_IF_ERROR(ReadInto(record, &bytes));
    const auto wanted = checksums->find(record);
    if (wanted == checksums->end() ||
        crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != wanted->second) {
      return Wrong(file_, absl::StrCat("is damaged at '", Excerpt(record),
                                       "': its checksum differs (copy the file again)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StoredChecksum(const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(const auto checksums, ReadChecksums(path));
  Checksum all;
  for (const auto& [name, crc] : checksums) {
    all.Add(absl::StrCat(name, " ", crc, "\n"));
  }
  return all.Hex();
}

absl::StatusOr<PackageKind> KindOfPackage(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return PackageKind::kAoti;
  }
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<ModelArchive> archive, ModelArchive::Open(path));
  if (archive->Has(kPairManifestRecord)) {
    return PackageKind::kPair;
  }
  return archive->Has("models/model.json") && !HoldsCompiled(*archive)
             ? PackageKind::kExportedProgram
             : PackageKind::kAoti;
}

absl::Status CheckTorchScriptArchive(const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<ModelArchive> archive, ModelArchive::Open(path));
  const std::string file = std::filesystem::path(path).filename();
  if (archive->Has("constants.pkl")) {
    return archive->CheckContents();
  }
  if (HoldsCompiled(*archive)) {
    return Wrong(file, "is an AOTInductor package: name it model.pt2");
  }
  if (archive->Has("archive_format")) {
    return Wrong(file, "is a package of torch.export: name it model.pt2");
  }
  return Wrong(file, archive->Has("data.pkl")
                         ? "is a file of torch.save, a state dict or a pickled module (expected a "
                           "TorchScript module saved with torch.jit.save)"
                         : "is an archive, but not a TorchScript module");
}

}  // namespace braid

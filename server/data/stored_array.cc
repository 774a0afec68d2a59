#include "server/data/stored_array.h"

#include <zip.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/data/npy_header.h"
#include "server/storage/file_error.h"
#include "server/storage/safetensors.h"

namespace braid {
namespace {

constexpr size_t kBlock = size_t{1} << 20;

// Sequential reader of unpacked bytes.
class Unpacker {
 public:
  virtual ~Unpacker() = default;
  // Reads up to `count` bytes, fewer at the end.
  virtual absl::StatusOr<std::string> Read(size_t count) = 0;
};

using OpenUnpacker = std::function<absl::StatusOr<std::unique_ptr<Unpacker>>()>;

class FileUnpacker final : public Unpacker {
 public:
  explicit FileUnpacker(std::shared_ptr<const DataFile> file) : file_(std::move(file)) {}

  absl::StatusOr<std::string> Read(size_t count) override {
    BRAID_ASSIGN_OR_RETURN(std::string bytes, file_->Read(position_, count));
    position_ += static_cast<int64_t>(bytes.size());
    return bytes;
  }

 private:
  const std::shared_ptr<const DataFile> file_;
  int64_t position_ = 0;
};

class GzipUnpacker final : public Unpacker {
 public:
  static absl::StatusOr<std::unique_ptr<Unpacker>> Open(std::shared_ptr<const DataFile> file) {
    BRAID_ASSIGN_OR_RETURN(const FileDescriptor again, file->Reopen());
    const int descriptor = dup(again.get());
    gzFile stream = descriptor < 0 ? nullptr : gzdopen(descriptor, "rb");
    if (stream == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot unpack '", file->path(), "'"));
    }
    return std::unique_ptr<Unpacker>(new GzipUnpacker(std::move(file), stream));
  }
  ~GzipUnpacker() override { gzclose(stream_); }

  absl::StatusOr<std::string> Read(size_t count) override {
    std::string bytes(count, '\0');
    size_t read = 0;
    while (read < count) {
      const auto want = static_cast<unsigned>(std::min(count - read, kBlock));
      const int got = gzread(stream_, bytes.data() + read, want);
      int code = Z_OK;
      const char* const text = gzerror(stream_, &code);
      // At the end of a file that lacks its tail, gzread() returns the rest and notes Z_BUF_ERROR.
      if (got < 0 || code == Z_BUF_ERROR) {
        return absl::DataLossError(absl::StrCat("cannot unpack '", file_->path(), "': ", text));
      }
      if (got == 0) {
        break;
      }
      read += static_cast<size_t>(got);
    }
    bytes.resize(read);
    return bytes;
  }

 private:
  GzipUnpacker(std::shared_ptr<const DataFile> file, gzFile stream)
      : file_(std::move(file)), stream_(stream) {}

  const std::shared_ptr<const DataFile> file_;
  const gzFile stream_;
};

using ZipArchive = std::shared_ptr<zip_t>;

absl::StatusOr<ZipArchive> OpenZip(const DataFile& file) {
  int code = 0;
  // libzip takes a path; this one leads to the open file.
  zip_t* const archive =
      zip_open(absl::StrCat("/proc/self/fd/", file.descriptor()).c_str(), ZIP_RDONLY, &code);
  if (archive == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    absl::Status status = absl::DataLossError(
        absl::StrCat("cannot read '", file.path(), "': ", zip_error_strerror(&error)));
    zip_error_fini(&error);
    return status;
  }
  return ZipArchive(archive, &zip_discard);
}

// Member of an archive. libzip verifies its checksum at the end.
class ZipUnpacker final : public Unpacker {
 public:
  static absl::StatusOr<std::unique_ptr<Unpacker>> Open(std::shared_ptr<const DataFile> file,
                                                        zip_uint64_t index) {
    BRAID_ASSIGN_OR_RETURN(ZipArchive archive, OpenZip(*file));
    zip_file_t* const member = zip_fopen_index(archive.get(), index, 0);
    if (member == nullptr) {
      return absl::DataLossError(
          absl::StrCat("cannot read '", file->path(), "': ", zip_strerror(archive.get())));
    }
    return std::unique_ptr<Unpacker>(new ZipUnpacker(std::move(file), std::move(archive), member));
  }
  ~ZipUnpacker() override { zip_fclose(member_); }

  absl::StatusOr<std::string> Read(size_t count) override {
    std::string bytes(count, '\0');
    size_t read = 0;
    while (read < count) {
      const zip_int64_t got = zip_fread(member_, bytes.data() + read, count - read);
      if (got < 0) {
        return absl::DataLossError(
            absl::StrCat("cannot unpack '", file_->path(), "': ", zip_file_strerror(member_)));
      }
      if (got == 0) {
        break;
      }
      read += static_cast<size_t>(got);
    }
    bytes.resize(read);
    return bytes;
  }

 private:
  ZipUnpacker(std::shared_ptr<const DataFile> file, ZipArchive archive, zip_file_t* member)
      : file_(std::move(file)), archive_(std::move(archive)), member_(member) {}

  const std::shared_ptr<const DataFile> file_;
  const ZipArchive archive_;
  zip_file_t* const member_;
};

// Reverses the bytes of each element.
void SwapBytes(size_t element_bytes, std::string* bytes) {
  for (size_t at = 0; at + element_bytes <= bytes->size(); at += element_bytes) {
    const auto begin = bytes->begin() + static_cast<std::ptrdiff_t>(at);
    std::reverse(begin, begin + static_cast<std::ptrdiff_t>(element_bytes));
  }
}

// Unpacks `bytes` bytes after the first `offset` ones into a scratch file and maps it.
absl::StatusOr<std::shared_ptr<const MappedRange>> Unpack(const OpenUnpacker& open, size_t offset,
                                                          size_t bytes, size_t swapped_bytes,
                                                          const std::string& path,
                                                          const std::string& scratch_directory) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<Unpacker> unpacker, open());
  BRAID_ASSIGN_OR_RETURN(FileDescriptor scratch, CreateScratchFile(scratch_directory));
  BRAID_RETURN_IF_ERROR(unpacker->Read(offset).status());
  size_t rest = bytes;
  while (rest > 0) {
    BRAID_ASSIGN_OR_RETURN(std::string block, unpacker->Read(std::min(rest, kBlock)));
    if (block.empty()) {
      return absl::DataLossError(absl::StrCat("'", path, "' ends ", rest, " bytes early"));
    }
    rest -= block.size();
    SwapBytes(swapped_bytes, &block);
    BRAID_RETURN_IF_ERROR(WriteAll(scratch.get(), block, scratch_directory));
  }
  // Reaching the end verifies the checksum.
  BRAID_ASSIGN_OR_RETURN(const std::string more, unpacker->Read(1));
  if (!more.empty()) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' has data after its elements (expected ", bytes, " bytes)"));
  }
  BRAID_ASSIGN_OR_RETURN(const auto file, DataFile::Adopt(path, std::move(scratch)));
  return MappedRange::Map(file, 0, bytes);
}

// Checks the shape and adds the function that maps the elements. `direct`: the file whose bytes
// from `offset` are the elements; null if they must be unpacked.
absl::Status Locate(const std::shared_ptr<const DataFile>& direct, const OpenUnpacker& open,
                    size_t offset, size_t swapped_bytes, const std::string& path,
                    const std::string& scratch_directory, StoredArray* array) {
  const std::optional<size_t> bytes = BytesOf(array->type, array->shape);
  if (!bytes.has_value() || array->shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("array '", array->name, "' has shape ",
                                                   ShapeString(array->shape),
                                                   " (expected rows in the first dimension)"));
  }
  if (direct != nullptr) {
    array->map = [direct, offset, size = *bytes] { return MappedRange::Map(direct, offset, size); };
    // Detects a file that is too short now, not in the middle of a job.
    return *bytes == 0 ? absl::OkStatus() : array->map().status();
  }
  array->map = [open, offset, size = *bytes, swapped_bytes, path, scratch_directory] {
    return Unpack(open, offset, size, swapped_bytes, path, scratch_directory);
  };
  return absl::OkStatus();
}

std::string StemOf(absl::string_view path) {
  std::string name = std::filesystem::path(std::string(path)).filename();
  absl::string_view stem = name;
  absl::ConsumeSuffix(&stem, ".gz");
  absl::ConsumeSuffix(&stem, ".npy");
  return std::string(stem);
}

absl::StatusOr<StoredArray> ReadNpy(const std::shared_ptr<const DataFile>& direct,
                                    const OpenUnpacker& open, std::string name,
                                    const std::string& path, const std::string& scratch_directory) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<Unpacker> unpacker, open());
  BRAID_ASSIGN_OR_RETURN(const std::string head, unpacker->Read(kMaxNpyHeader));
  BRAID_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(head));
  StoredArray array{std::move(name), header.type, header.shape, nullptr};
  BRAID_RETURN_IF_ERROR(
      Locate(direct, open, header.data_offset, 1, path, scratch_directory, &array));
  return array;
}

std::optional<DataType> IdxType(char code) {
  switch (code) {
    case 0x08:
      return DataType::kUint8;
    case 0x09:
      return DataType::kInt8;
    case 0x0B:
      return DataType::kInt16;
    case 0x0C:
      return DataType::kInt32;
    case 0x0D:
      return DataType::kFp32;
    case 0x0E:
      return DataType::kFp64;
    default:
      return std::nullopt;
  }
}

// IDX: two zero bytes, element type, rank; dimensions and elements in big-endian order.
absl::StatusOr<StoredArray> ReadIdx(std::shared_ptr<const DataFile> direct,
                                    const OpenUnpacker& open, const std::string& path,
                                    const std::string& scratch_directory) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<Unpacker> unpacker, open());
  BRAID_ASSIGN_OR_RETURN(const std::string head, unpacker->Read(4));
  const std::optional<DataType> type = head.size() == 4 ? IdxType(head[2]) : std::nullopt;
  if (!type.has_value() || head[0] != 0 || head[1] != 0) {
    return absl::DataLossError("not an IDX file (expected the magic number 0x00000801 or similar)");
  }
  const auto rank = static_cast<size_t>(static_cast<unsigned char>(head[3]));
  BRAID_ASSIGN_OR_RETURN(const std::string dims, unpacker->Read(4 * rank));
  if (dims.size() != 4 * rank) {
    return absl::DataLossError("malformed IDX header: the file ends in the header");
  }
  StoredArray array{StemOf(path), *type, {}, nullptr};
  for (size_t d = 0; d < rank; ++d) {
    int64_t dim = 0;
    for (size_t b = 0; b < 4; ++b) {
      dim = dim << 8 | static_cast<unsigned char>(dims[4 * d + b]);
    }
    array.shape.push_back(dim);
  }
  const size_t swapped = DataTypeSize(*type);
  if (swapped > 1) {
    direct = nullptr;
  }
  BRAID_RETURN_IF_ERROR(
      Locate(direct, open, 4 + 4 * rank, swapped, path, scratch_directory, &array));
  return array;
}

absl::StatusOr<std::vector<StoredArray>> ReadNpz(const std::shared_ptr<const DataFile>& file,
                                                 const std::string& scratch_directory) {
  BRAID_ASSIGN_OR_RETURN(const ZipArchive archive, OpenZip(*file));
  std::vector<StoredArray> arrays;
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    const char* const text = zip_get_name(archive.get(), index, 0);
    absl::string_view name = text == nullptr ? "" : text;
    if (!absl::ConsumeSuffix(&name, ".npy")) {
      return absl::InvalidArgumentError(
          absl::StrCat("member '", name, "' (expected .npy arrays, as numpy.savez() writes)"));
    }
    const OpenUnpacker open = [file, index] { return ZipUnpacker::Open(file, index); };
    absl::StatusOr<StoredArray> array =
        ReadNpy(nullptr, open, std::string(name), file->path(), scratch_directory);
    if (!array.ok()) {
      return absl::Status(array.status().code(),
                          absl::StrCat("array '", name, "': ", array.status().message()));
    }
    arrays.push_back(*std::move(array));
  }
  return arrays;
}

absl::StatusOr<std::vector<StoredArray>> ReadSafetensorsArrays(
    const std::shared_ptr<const DataFile>& file) {
  BRAID_ASSIGN_OR_RETURN(const SafetensorsFile header, SafetensorsFile::Open(file->path()));
  std::vector<StoredArray> arrays;
  for (const SafetensorsEntry& entry : header.entries()) {
    StoredArray array{entry.name, entry.type, entry.shape, nullptr};
    BRAID_RETURN_IF_ERROR(
        Locate(file, nullptr, header.data_offset() + entry.begin, 1, file->path(), "", &array));
    arrays.push_back(std::move(array));
  }
  std::sort(arrays.begin(), arrays.end(),
            [](const StoredArray& a, const StoredArray& b) { return a.name < b.name; });
  return arrays;
}

absl::StatusOr<std::vector<StoredArray>> OneArray(absl::StatusOr<StoredArray> array) {
  if (!array.ok()) {
    return std::move(array).status();
  }
  std::vector<StoredArray> arrays;
  arrays.push_back(*std::move(array));
  return arrays;
}

absl::StatusOr<std::vector<StoredArray>> ReadAnyArrays(const std::shared_ptr<const DataFile>& file,
                                                       const std::string& scratch_directory) {
  const std::string& path = file->path();
  if (absl::EndsWith(path, ".npz")) {
    return ReadNpz(file, scratch_directory);
  }
  if (absl::EndsWith(path, ".safetensors")) {
    return ReadSafetensorsArrays(file);
  }
  if (absl::EndsWith(path, ".gz")) {
    return OneArray(ReadIdx(
        nullptr, [file] { return GzipUnpacker::Open(file); }, path, scratch_directory));
  }
  const OpenUnpacker open = [file] {
    return absl::StatusOr<std::unique_ptr<Unpacker>>(std::make_unique<FileUnpacker>(file));
  };
  if (absl::EndsWith(path, ".npy")) {
    return OneArray(ReadNpy(file, open, StemOf(path), path, scratch_directory));
  }
  return OneArray(ReadIdx(file, open, path, scratch_directory));
}

}  // namespace

bool IsArrayFile(absl::string_view path, absl::string_view head) {
  if (absl::EndsWith(path, ".npy") || absl::EndsWith(path, ".npz") ||
      absl::EndsWith(path, ".safetensors")) {
    return true;
  }
  const bool idx = head.size() >= 4 && head[0] == 0 && head[1] == 0 && IdxType(head[2]).has_value();
  const bool gzip = absl::StartsWith(head, "\x1f\x8b");
  // The contents are known only after unpacking, for example of "train-images-idx3-ubyte.gz".
  return idx || (gzip && absl::EndsWith(path, ".gz") && absl::StrContains(path, "idx"));
}

absl::StatusOr<std::vector<StoredArray>> ReadArrays(const std::shared_ptr<const DataFile>& file,
                                                    const std::string& scratch_directory) {
  absl::StatusOr<std::vector<StoredArray>> arrays = ReadAnyArrays(file, scratch_directory);
  if (!arrays.ok() && !absl::StrContains(arrays.status().message(), file->path())) {
    return InFile(file->path(), arrays.status());
  }
  return arrays;
}

absl::StatusOr<HostTensor> MapTensor(const StoredArray& array,
                                     std::shared_ptr<const MappedRange>* range) {
  BRAID_ASSIGN_OR_RETURN(*range, array.map());
  HostTensor tensor;
  tensor.name = array.name;
  tensor.type = array.type;
  tensor.shape = array.shape;
  tensor.data = (*range)->data();
  tensor.bytes = (*range)->bytes();
  tensor.owner = *range;
  return tensor;
}

}  // namespace braid

#include "server/storage/stored_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/byte_sink.h"
#include "server/base/status.h"
#include "server/storage/checksum.h"
#include "server/storage/file_sink.h"
#include "server/storage/input_file.h"

namespace braid {
namespace {

class MeasuringSink final : public ByteSink {
 public:
  absl::Status Write(absl::string_view bytes) override {
    bytes_ += static_cast<int64_t>(bytes.size());
    checksum_.Add(bytes);
    return absl::OkStatus();
  }
  StoredFile stored() const { return {bytes_, checksum_.Hex()}; }

 private:
  int64_t bytes_ = 0;
  Checksum checksum_;
};

NewFile ContentsOf(const InputFile& file) {
  return {file.path(), [&file](ByteSink* sink) { return file.WriteTo(sink); }};
}

// Reports a missing file as DATA_LOSS.
absl::StatusOr<InputFile> OpenStored(const std::string& path) {
  absl::StatusOr<InputFile> file = InputFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(absl::StrCat("'", path, "': missing"));
  }
  return file;
}

absl::Status CheckChecksum(const std::string& path, const StoredFile& found,
                           const StoredFile& expected) {
  return found.checksum == expected.checksum
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat("'", path, "': checksum ", found.checksum,
                                                " (expected ", expected.checksum, ")"));
}

}  // namespace

absl::StatusOr<StoredFile> StoreFile(const std::string& path, const NewFile& file) {
  BRAID_ASSIGN_OR_RETURN(FileSink sink, FileSink::Create(path));
  BRAID_RETURN_IF_ERROR(file.write(&sink));
  BRAID_RETURN_IF_ERROR(sink.Finish());
  return StoredFile{sink.bytes(), sink.checksum()};
}

absl::StatusOr<StoredFile> MeasureFile(const NewFile& file) {
  MeasuringSink sink;
  BRAID_RETURN_IF_ERROR(file.write(&sink));
  return sink.stored();
}

absl::Status CheckStoredSize(const std::string& path, const StoredFile& expected) {
  BRAID_ASSIGN_OR_RETURN(const InputFile file, OpenStored(path));
  if (file.bytes() != expected.bytes) {
    return absl::DataLossError(
        absl::StrCat("'", path, "': ", file.bytes(), " bytes (expected ", expected.bytes, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckStoredContent(const std::string& path, const StoredFile& expected) {
  BRAID_RETURN_IF_ERROR(CheckStoredSize(path, expected));
  BRAID_ASSIGN_OR_RETURN(const InputFile file, OpenStored(path));
  BRAID_ASSIGN_OR_RETURN(const StoredFile found, MeasureFile(ContentsOf(file)));
  return CheckChecksum(path, found, expected);
}

absl::Status CopyStoredFile(const std::string& from, const StoredFile& stored,
                            const std::string& to) {
  BRAID_RETURN_IF_ERROR(CheckStoredSize(from, stored));
  BRAID_ASSIGN_OR_RETURN(const InputFile file, OpenStored(from));
  BRAID_ASSIGN_OR_RETURN(const StoredFile copied, StoreFile(to, ContentsOf(file)));
  return CheckChecksum(from, copied, stored);
}

}  // namespace braid

#include "client/cli/npy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/cli/elements.h"

namespace braid::cli {
namespace {

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::StatusOr<absl::string_view> Map(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open");
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, "cannot read");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return absl::InvalidArgumentError("the file is empty");
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map");
  return absl::string_view(static_cast<const char*>(memory), size);
}

absl::Status CheckSize(absl::string_view datatype, absl::Span<const int64_t> shape, size_t have) {
  absl::StatusOr<int64_t> want = client::ByteCount(datatype, shape);
  if (!want.ok()) return want.status();
  if (static_cast<size_t>(*want) == have) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("has ", have, " bytes of elements, dtype and ",
                                                 "shape (", datatype, " ", FormatShape(shape),
                                                 ") make ", *want));
}

}  // namespace

absl::StatusOr<NpyFile> NpyFile::Open(const std::string& path) {
  absl::StatusOr<absl::string_view> mapped = Map(path);
  if (!mapped.ok()) return At(path, mapped.status());
  NpyFile file(*mapped);
  absl::StatusOr<NpyHeader> header = ParseNpyHeader(*mapped);
  if (!header.ok()) return At(path, header.status());
  file.header_ = *std::move(header);
  absl::Status status = CheckSize(file.header_.datatype, file.header_.shape, file.bytes().size());
  if (!status.ok()) return At(path, status);
  return file;
}

NpyFile::NpyFile(NpyFile&& other) noexcept
    : mapped_(std::exchange(other.mapped_, {})), header_(std::exchange(other.header_, {})) {}

NpyFile::~NpyFile() {
  // munmap's signature predates const.
  if (!mapped_.empty()) munmap(const_cast<char*>(mapped_.data()), mapped_.size());
}

client::Tensor NpyFile::ToTensor(std::string name) const {
  return {std::move(name), header_.datatype, header_.shape, std::string(bytes())};
}

absl::Status WriteNpy(const std::string& path, const client::Tensor& tensor) {
  absl::Status status = CheckSize(tensor.datatype, tensor.shape, tensor.data.size());
  if (!status.ok()) return At(path, status);
  if (tensor.datatype == "BF16") {
    std::vector<float> values;
    values.reserve(tensor.data.size() / 2);
    ForEachElement(tensor, [&](auto value) { values.push_back(static_cast<float>(value)); });
    return WriteNpy(path, client::MakeTensor<float>(tensor.name, tensor.shape, values));
  }
  absl::StatusOr<std::string> header = FormatNpyHeader(tensor.datatype, tensor.shape);
  if (!header.ok()) return At(path, header.status());
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return At(path, absl::ErrnoToStatus(errno, "cannot open"));
  bool written = std::fwrite(header->data(), 1, header->size(), file) == header->size() &&
                 std::fwrite(tensor.data.data(), 1, tensor.data.size(), file) == tensor.data.size();
  int error = errno;
  if (std::fclose(file) != 0 && written) {
    written = false;
    error = errno;
  }
  return written ? absl::OkStatus() : At(path, absl::ErrnoToStatus(error, "cannot write"));
}

}  // namespace braid::cli

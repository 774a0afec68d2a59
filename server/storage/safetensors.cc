#include "server/storage/safetensors.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

constexpr size_t kLengthBytes = 8;
// Limit of the reference implementation.
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kAlignment = 64;

// Bytes before the data, and the tensors in the order of their data.
struct Plan {
  std::string head;
  std::vector<const HostTensor*> tensors;
  size_t data_bytes = 0;
};

std::string EncodeLength(uint64_t length) {
  std::string bytes(kLengthBytes, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(length & 0xFF);
    length >>= 8;
  }
  return bytes;
}

uint64_t DecodeLength(absl::string_view bytes) {
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return length;
}

absl::StatusOr<Plan> MakePlan(const std::vector<HostTensor>& tensors,
                              const SafetensorsMetadata& metadata) {
  Plan plan;
  for (const HostTensor& tensor : tensors) {
    plan.tensors.push_back(&tensor);
  }
  std::stable_sort(plan.tensors.begin(), plan.tensors.end(), [](const auto* a, const auto* b) {
    return DataTypeSize(a->type) > DataTypeSize(b->type);
  });
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  for (const HostTensor* tensor : plan.tensors) {
    if (BytesOf(tensor->type, tensor->shape) != tensor->bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", absl::CHexEscape(tensor->name), "' has ", tensor->bytes,
                       " bytes for ", DataTypeName(tensor->type), " ", ShapeString(tensor->shape)));
    }
    const size_t begin = plan.data_bytes;
    plan.data_bytes += tensor->bytes;
    header.entries.push_back({tensor->name, tensor->type, tensor->shape, begin, plan.data_bytes});
  }
  BRAID_ASSIGN_OR_RETURN(std::string text, SafetensorsHeaderText(header));
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  plan.head = EncodeLength(text.size()) + text;
  return plan;
}

absl::StatusOr<std::shared_ptr<char>> Allocate(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)),
                               &std::free);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of host memory: cannot allocate ", bytes, " bytes"));
  }
  return memory;
}

absl::StatusOr<std::string> ReadHeader(const InputFile& file) {
  const uint64_t bytes = static_cast<uint64_t>(file.bytes());
  if (bytes < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("'", file.path(), "': ", bytes, " bytes (expected a header of at least 8)"));
  }
  std::string text(kLengthBytes, '\0');
  BRAID_RETURN_IF_ERROR(file.Read(0, text.data(), text.size()));
  const uint64_t length = DecodeLength(text);
  const uint64_t max_length = std::min(kMaxHeader, bytes - kLengthBytes);
  if (length > max_length) {
    return absl::DataLossError(absl::StrCat("'", file.path(), "': header of ", length,
                                            " bytes (expected at most ", max_length, ")"));
  }
  text.resize(static_cast<size_t>(length));
  BRAID_RETURN_IF_ERROR(file.Read(kLengthBytes, text.data(), text.size()));
  return text;
}

}  // namespace

absl::Status WriteSafetensors(ByteSink* sink, const std::vector<HostTensor>& tensors,
                              const SafetensorsMetadata& metadata) {
  BRAID_ASSIGN_OR_RETURN(const Plan plan, MakePlan(tensors, metadata));
  BRAID_RETURN_IF_ERROR(sink->Write(plan.head));
  for (const HostTensor* tensor : plan.tensors) {
    BRAID_RETURN_IF_ERROR(
        sink->Write(absl::string_view(static_cast<const char*>(tensor->data), tensor->bytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SafetensorsBytes(const std::vector<HostTensor>& tensors,
                                         const SafetensorsMetadata& metadata) {
  BRAID_ASSIGN_OR_RETURN(const Plan plan, MakePlan(tensors, metadata));
  return static_cast<int64_t>(plan.head.size() + plan.data_bytes);
}

SafetensorsFile::SafetensorsFile(InputFile file, SafetensorsHeader header, size_t head_bytes)
    : file_(std::move(file)), header_(std::move(header)), head_bytes_(head_bytes) {}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  BRAID_ASSIGN_OR_RETURN(const std::string text, ReadHeader(file));
  const size_t head_bytes = kLengthBytes + text.size();
  const size_t data_bytes = static_cast<size_t>(file.bytes()) - head_bytes;
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text, data_bytes);
  if (!header.ok()) {
    return InFile(path, header.status());
  }
  return SafetensorsFile(std::move(file), *std::move(header), head_bytes);
}

absl::Status SafetensorsFile::Read(const SafetensorsEntry& entry, void* to) const {
  return file_.Read(static_cast<int64_t>(head_bytes_ + entry.begin), to, entry.end - entry.begin);
}

absl::StatusOr<std::vector<HostTensor>> ReadSafetensors(const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<HostTensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    const size_t bytes = entry.end - entry.begin;
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, Allocate(bytes));
    BRAID_RETURN_IF_ERROR(file.Read(entry, memory.get()));
    tensors.push_back({entry.name, entry.type, entry.shape, memory.get(), bytes, memory});
  }
  return tensors;
}

}  // namespace braid

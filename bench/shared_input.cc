#include "bench/shared_input.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"

namespace braid::bench {
namespace {

absl::Status WriteRegion(const std::string& key, const void* data, size_t bytes) {
  const int file = shm_open(key.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("shm_open ", key));
  }
  absl::Status status;
  const void* const end = static_cast<const char*>(data) + bytes;
  for (const char* next = static_cast<const char*>(data); next != end && status.ok();) {
    const ssize_t written =
        write(file, next, static_cast<size_t>(static_cast<const char*>(end) - next));
    if (written < 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("write to ", key));
    } else {
      next += written;
    }
  }
  close(file);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedInput>> SharedInput::Create(Stub* stub,
                                                                 const std::vector<float>& values) {
  const size_t bytes = values.size() * sizeof(float);
  const std::string key = absl::StrCat("/bench-", getpid());
  if (absl::Status status = WriteRegion(key, values.data(), bytes); !status.ok()) {
    shm_unlink(key.c_str());
    return status;
  }
  std::unique_ptr<SharedInput> shared(new SharedInput(stub, key, bytes));
  grpc::ClientContext context;
  inference::SystemSharedMemoryRegisterRequest request;
  inference::SystemSharedMemoryRegisterResponse response;
  request.set_name(key);
  request.set_key(key);
  request.set_byte_size(bytes);
  const grpc::Status status = stub->SystemSharedMemoryRegister(&context, request, &response);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  return shared;
}

SharedInput::~SharedInput() {
  grpc::ClientContext context;
  inference::SystemSharedMemoryUnregisterRequest request;
  inference::SystemSharedMemoryUnregisterResponse response;
  request.set_name(key_);
  stub_->SystemSharedMemoryUnregister(&context, request, &response);
  shm_unlink(key_.c_str());
}

void SharedInput::Refer(inference::ModelInferRequest::InferInputTensor* input) const {
  auto& parameters = *input->mutable_parameters();
  parameters["shared_memory_region"].set_string_param(key_);
  parameters["shared_memory_byte_size"].set_int64_param(static_cast<int64_t>(bytes_));
}

}  // namespace braid::bench

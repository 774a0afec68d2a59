// GPU memory of other processes, simulated with strings.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/base/gpu_memory.h"
#include "server/base/status.h"

namespace braid {

struct FakeGpus {
  // By handle. Every GPU can open all of them.
  std::map<std::string, std::string> allocations;
  int open = 0;        // of the allocations, now
  absl::Status fault;  // what the next copies come to

  // Available while this object lives.
  GpuMemorySource Source(int gpus);
};

class FakeGpuMemory final : public GpuMemory {
 public:
  FakeGpuMemory(FakeGpus* gpus, std::string* allocation) : gpus_(gpus), allocation_(allocation) {
    ++gpus_->open;
  }
  FakeGpuMemory(const FakeGpuMemory&) = delete;
  FakeGpuMemory& operator=(const FakeGpuMemory&) = delete;
  ~FakeGpuMemory() override { --gpus_->open; }

  size_t bytes() const override { return allocation_->size(); }
  absl::Status Read(size_t offset, size_t bytes, void* to) const override {
    BRAID_RETURN_IF_ERROR(gpus_->fault);
    allocation_->copy(static_cast<char*>(to), bytes, offset);
    return absl::OkStatus();
  }
  absl::Status Write(size_t offset, size_t bytes, const void* from) const override {
    BRAID_RETURN_IF_ERROR(gpus_->fault);
    allocation_->replace(offset, bytes, static_cast<const char*>(from), bytes);
    return absl::OkStatus();
  }

 private:
  FakeGpus* const gpus_;
  std::string* const allocation_;
};

inline GpuMemorySource FakeGpus::Source(int gpus) {
  return {gpus,
          [this](const std::string& handle,
                 int /*device*/) -> absl::StatusOr<std::unique_ptr<GpuMemory>> {
            const auto found = allocations.find(handle);
            if (found == allocations.end()) {
              return InvalidField("raw_handle", "is of no allocation");
            }
            return std::make_unique<FakeGpuMemory>(this, &found->second);
          }};
}

}  // namespace braid

// A model that reports the addresses of its tensors, for tests without LibTorch headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/batching/request_queue.h"

namespace braid {

// Doubles x FP32 [B, 1] into y, in batches of up to `max_batch_size`, on two workers.
class CopyProbe {
 public:
  struct Memory {
    const void* data = nullptr;
    size_t bytes = 0;
  };

  explicit CopyProbe(int64_t max_batch_size);
  ~CopyProbe();
  CopyProbe(const CopyProbe&) = delete;
  CopyProbe& operator=(const CopyProbe&) = delete;

  RequestQueue& queue();
  // The workers begin only now.
  void Open();
  // Addresses of the model's inputs and outputs so far. Outputs live as long as the probe.
  std::vector<Memory> inputs() const;
  std::vector<Memory> outputs() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid

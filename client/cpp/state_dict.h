// Assembles a state dict from the pieces that the server streams.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"
#include "client/cpp/tensor.h"

namespace braid::client {

struct StateEntry {
  Tensor tensor;
  // True for a parameter, false for a buffer.
  bool parameter = false;
};

// Collects pieces with Add, then returns the entries with Finish. Thread-compatible.
class StateDictAssembler {
 public:
  // Adds the next piece. INTERNAL if it does not continue where the last one ended.
  absl::Status Add(const v1::GetStateDictResponse& piece);

  // Returns the entries in the order of their arrival and empties the assembler. INTERNAL if the
  // last entry is incomplete.
  absl::StatusOr<std::vector<StateEntry>> Finish();

 private:
  absl::Status Begin(const v1::GetStateDictResponse& piece);

  std::vector<StateEntry> entries_;
  // Bytes that the last entry is missing.
  int64_t missing_ = 0;
};

}  // namespace braid::client

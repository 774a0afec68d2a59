// Puts a state dict together from the pieces in which the server streams it.
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
  // A parameter; else a buffer.
  bool parameter = false;
};

// Thread-compatible.
class StateDictAssembler {
 public:
  // Takes the next piece. INTERNAL if it does not go on where the last one ended.
  absl::Status Add(const v1::GetStateDictResponse& piece);

  // The entries in the order in which they came. INTERNAL if the last one is incomplete. Leaves
  // nothing behind.
  absl::StatusOr<std::vector<StateEntry>> Finish();

 private:
  absl::Status Begin(const v1::GetStateDictResponse& piece);

  std::vector<StateEntry> entries_;
  // Bytes that the last entry still lacks.
  int64_t missing_ = 0;
};

}  // namespace braid::client

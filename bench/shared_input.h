// A request's input in system shared memory, by Triton's extension of that name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/grpc_service.grpc.pb.h"

namespace braid::bench {

// Registered with a server for as long as this lives.
class SharedInput {
 public:
  using Stub = inference::GRPCInferenceService::Stub;

  // `stub` outlives it. The server's error if it does not offer shared memory.
  static absl::StatusOr<std::unique_ptr<SharedInput>> Create(Stub* stub,
                                                             const std::vector<float>& values);
  ~SharedInput();
  SharedInput(const SharedInput&) = delete;
  SharedInput& operator=(const SharedInput&) = delete;

  // Has `input` read its data there.
  void Refer(inference::ModelInferRequest::InferInputTensor* input) const;

 private:
  SharedInput(Stub* stub, std::string key, size_t bytes)
      : stub_(stub), key_(std::move(key)), bytes_(bytes) {}

  Stub* const stub_;
  const std::string key_;  // of the region, which has the same name
  const size_t bytes_;
};

}  // namespace braid::bench

// Forward passes with plain LibTorch on the calling thread. Keeps LibTorch's headers apart from
// gRPC's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace braid::bench {

// Runs a TorchScript model with FP32 inputs and outputs. Thread-safe.
class Forward {
 public:
  // `features` is the number of elements per row. Throws LibTorch's exceptions if the file cannot
  // be loaded.
  Forward(const std::string& path, int64_t features);
  ~Forward();

  // Runs the model on `x` and stores the output in `y`. Both hold FP32 elements as bytes; `x`
  // consists of whole rows and is not copied.
  void Run(const std::string& x, std::string* y);

 private:
  struct Impl;

  const std::unique_ptr<Impl> impl_;
};

}  // namespace braid::bench

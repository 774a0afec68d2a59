// A forward pass where it is asked for: LibTorch as it comes, on the calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace braid::bench {

// A TorchScript model of float32 rows, in and out. Thread-safe.
class Forward {
 public:
  // `features`: of a row. Throws LibTorch's exceptions if the file cannot be loaded.
  Forward(const std::string& path, int64_t features);
  ~Forward();

  // The numbers of `y` become the model's output for those of `x`, whole rows, which are read where
  // they are.
  void Run(const std::string& x, std::string* y);

 private:
  struct Impl;

  const std::unique_ptr<Impl> impl_;
};

}  // namespace braid::bench

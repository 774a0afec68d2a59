// A graph of a torch.export package, run by torch::nativert.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"

namespace torch::nativert {
class ModelRunnerHandle;
}  // namespace torch::nativert

namespace braid {

// Used by one thread at a time.
class ExportedGraph {
 public:
  // Graph `name` of the package at `path`. FAILED_PRECONDITION if it cannot be loaded.
  static absl::StatusOr<std::unique_ptr<ExportedGraph>> Load(const std::string& path,
                                                             const std::string& name);
  ~ExportedGraph();

  // Its outputs for its inputs, in the graph's order. They share no memory with what the next run
  // gives. Throws what LibTorch throws.
  std::vector<at::Tensor> Run(std::vector<at::Tensor> inputs);

 private:
  explicit ExportedGraph(std::unique_ptr<torch::nativert::ModelRunnerHandle> runner);

  const std::unique_ptr<torch::nativert::ModelRunnerHandle> runner_;
};

}  // namespace braid

// Exported pair: model.pt2 with the graphs of a model's forward and backward pass, and
// model.safetensors in the same folder with its parameters and buffers.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "c10/core/Device.h"
#include "server/graph/exported_graph.h"
#include "server/models/pair/pair_manifest.h"
#include "server/storage/mapping/memory_file.h"

namespace braid {

// Thread-safe. Reads model.pt2 once: later changes of the file have no effect.
class PairPackage {
 public:
  // device: runs the self-test if another PyTorch release exported the package; current on the
  // calling thread. FAILED_PRECONDITION if the package is damaged, has an unsupported schema
  // version, fails its self-test, or if the manifest does not match the graphs.
  static absl::StatusOr<std::shared_ptr<const PairPackage>> Open(const std::string& path,
                                                                 c10::Device device);

  const PairManifest& manifest() const { return manifest_; }
  const MemoryFile& file() const { return file_; }

  // Returns the code of a graph of the manifest.
  const ExportedGraph& graph(const PairGraph& graph) const { return *graphs_.at(graph.name); }

  // Returns one tensor in host memory per entry of the manifest's state; tied entries share one.
  // The tensors are shared with other callers: do not modify them. FAILED_PRECONDITION if the file
  // does not exist, is damaged, or belongs to another model.
  using Tensors = std::vector<at::Tensor>;
  absl::StatusOr<std::shared_ptr<const Tensors>> Weights() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Graphs = std::map<std::string, std::shared_ptr<const ExportedGraph>>;

  PairPackage(std::string weights_path, MemoryFile file, PairManifest manifest, Graphs graphs)
      : weights_path_(std::move(weights_path)),
        file_(std::move(file)),
        manifest_(std::move(manifest)),
        graphs_(std::move(graphs)) {}

  absl::StatusOr<Tensors> ReadWeights() const;

  const std::string weights_path_;
  const MemoryFile file_;
  const PairManifest manifest_;
  const Graphs graphs_;

  mutable absl::Mutex mu_;
  mutable std::weak_ptr<const Tensors> weights_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid

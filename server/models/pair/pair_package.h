// An exported pair: model.pt2 with the graphs of a model's forward and backward pass, and beside it
// model.safetensors with its parameters and buffers.
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
#include "server/storage/memory_file.h"

namespace braid {

// Thread-safe. What is at `path` is read once: later changes do not matter.
class PairPackage {
 public:
  // device: runs the self-test of a package of another PyTorch; current on the calling thread.
  // FAILED_PRECONDITION if the package is damaged or of another schema, if its self-test fails, or
  // if the manifest does not match the graphs.
  static absl::StatusOr<std::shared_ptr<const PairPackage>> Open(const std::string& path,
                                                                 c10::Device device);

  const PairManifest& manifest() const { return manifest_; }
  const MemoryFile& file() const { return file_; }

  // A graph of the manifest.
  const ExportedGraph& graph(const PairGraph& graph) const { return *graphs_.at(graph.name); }

  // One tensor an entry of the manifest's state, tied ones the same, in host memory. Not to be
  // changed: all that ask while somebody has them get the same. FAILED_PRECONDITION if the file is
  // not there, damaged, or of another model.
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

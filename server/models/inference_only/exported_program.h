// Package of torch.export.save, model.pt2: a graph with its weights.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/graph/exported_graph.h"
#include "server/models/inference_only/inference_package.h"

namespace braid {

// Inputs, outputs and device type of a program.
struct ProgramDescription {
  std::string torch_version;  // PyTorch version of the exporter
  PackageInterface interface;
  // Names of the outputs in a self-test, in order. An output that is None has an empty name.
  std::vector<std::string> outputs;
  bool on_cpu = true;
  // Operators that were exported in training mode, such as "dropout".
  std::set<std::string> training_operators;
};
// Reads the archive's models/model.json. FAILED_PRECONDITION if a field is missing, the schema
// version is unknown, or the program mutates its state.
absl::StatusOr<ProgramDescription> DescribeProgram(const JsonField& root);

// Immutable and thread-safe.
class ExportedProgram final : public InferencePackage {
 public:
  // device: the calling thread's current device. It runs the self-test, which is done if another
  // PyTorch release exported the package.
  // FAILED_PRECONDITION if the file is damaged or cannot be served.
  static absl::StatusOr<std::shared_ptr<const InferencePackage>> Open(const std::string& path,
                                                                      c10::Device device);

  const PackageInterface& interface() const override { return description_.interface; }
  absl::string_view kind() const override { return "an exported program"; }
  absl::StatusOr<std::unique_ptr<PackageRunner>> MakeRunner(c10::Device device) const override;

 private:
  ExportedProgram(std::shared_ptr<const ExportedGraph> graph, ProgramDescription description)
      : graph_(std::move(graph)), description_(std::move(description)) {}

  const std::shared_ptr<const ExportedGraph> graph_;
  const ProgramDescription description_;
};

}  // namespace braid

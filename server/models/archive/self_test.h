// Self-test of an exported package: inputs and the outputs computed at export. Every PyTorch
// release must reproduce them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "server/graph/exported_graph.h"
#include "server/models/archive/package_interface.h"
#include "server/models/archive/self_test_tensors.h"

namespace braid {

inline constexpr char kSelfTestRecord[] = "extra/self_test.json";

// Graph of a package. Tensors are named by role and name, such as "parameter/weight".
struct TestedGraph {
  std::string name;  // in the package
  std::string role;  // "eval", "forward" or "backward"
  std::shared_ptr<const ExportedGraph> graph;
  std::vector<std::string> inputs;   // in the order of the graph's user inputs
  std::vector<std::string> outputs;  // in the order of its outputs; equal names are summed
};

// View of a package for its self-test.
struct TestedModel {
  std::vector<PackageInput> inputs;  // supplied by the self-test
  std::vector<TestedGraph> graphs;   // in order of execution; may use outputs of earlier graphs
};

// Immutable.
class SelfTest {
 public:
  // text: the record. FAILED_PRECONDITION if it is damaged, of an unknown version, or does not fit
  // `model`.
  static absl::StatusOr<SelfTest> Parse(absl::string_view text, const TestedModel& model);

  // PyTorch version that computed the expected results.
  const std::string& torch_version() const { return torch_version_; }

  // Runs the graphs, each with the record's random seed. FAILED_PRECONDITION naming graph, tensor
  // and difference if a result differs; INTERNAL or RESOURCE_EXHAUSTED naming the graph if it
  // cannot be run. Call it on a thread that has entered `device`.
  absl::Status Run(c10::Device device) const;

 private:
  struct Given {
    std::string name;
    bool on_cpu = false;  // kept on the CPU
    GivenTensor tensor;
  };
  struct Step {
    TestedGraph graph;
    std::map<std::string, ExpectedSample> expected;  // by output
  };
  using Tensors = std::map<std::string, at::Tensor>;

  SelfTest() = default;
  absl::Status ReadGiven(const JsonField& root, const TestedModel& model);
  absl::Status ReadSteps(const JsonField& root, const TestedModel& model);
  static absl::StatusOr<Step> ReadStep(const JsonField& field, const TestedGraph& graph);
  Tensors MakeGiven(c10::Device device) const;
  absl::Status RunStep(const Step& step, c10::Device device, Tensors* tensors) const;

  std::string torch_version_;
  uint64_t seed_ = 0;
  std::vector<Given> given_;
  std::vector<Step> steps_;
};

}  // namespace braid

// Graph in an archive of torch.export, with its tensors.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/base/json_fields.h"
#include "server/graph/executor.h"
#include "server/graph/program.h"
#include "server/graph/stored_tensors.h"

namespace braid {

// Immutable and thread-safe; shared by the replicas of a model. Reads the archive once.
class ExportedGraph {
 public:
  // Loads graph `name` of the archive at `path`. program: its models/<name>.json.
  // FAILED_PRECONDITION if it cannot be run.
  static absl::StatusOr<std::shared_ptr<const ExportedGraph>> Load(const std::string& path,
                                                                   const std::string& name,
                                                                   const JsonField& program);

  const Program& program() const { return *program_; }
  // Creates an executor on `device`.
  std::unique_ptr<Executor> MakeExecutor(c10::Device device) const;
  // Creates an executor that computes only the `wanted` outputs. Other outputs are None.
  std::unique_ptr<Executor> MakeExecutor(c10::Device device, const std::vector<bool>& wanted) const;

 private:
  ExportedGraph(std::shared_ptr<const Program> program, std::vector<StoredTensor> tensors)
      : program_(std::move(program)), tensors_(std::move(tensors)) {}

  const std::shared_ptr<const Program> program_;
  const std::vector<StoredTensor> tensors_;
};

}  // namespace braid

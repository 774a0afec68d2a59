// One graph of an archive that torch.export wrote, with the tensors that it holds.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/base/json_fields.h"
#include "server/graph/executor.h"
#include "server/graph/payload.h"
#include "server/graph/program.h"

namespace braid {

// Immutable and thread-safe; the replicas of a model share one. What is at the archive's path is
// read once.
class ExportedGraph {
 public:
  // Graph `name` of the archive at `path`; `program`: its models/<name>.json. FAILED_PRECONDITION
  // if it cannot be run.
  static absl::StatusOr<std::shared_ptr<const ExportedGraph>> Load(const std::string& path,
                                                                   const std::string& name,
                                                                   const JsonField& program);

  const Program& program() const { return *program_; }
  // For one thread, on `device`.
  std::unique_ptr<Executor> MakeExecutor(c10::Device device) const;
  // One that computes no more than the `wanted` outputs; the others are None.
  std::unique_ptr<Executor> MakeExecutor(c10::Device device, const std::vector<bool>& wanted) const;

 private:
  ExportedGraph(std::shared_ptr<const Program> program, std::vector<StoredTensor> tensors)
      : program_(std::move(program)), tensors_(std::move(tensors)) {}

  const std::shared_ptr<const Program> program_;
  const std::vector<StoredTensor> tensors_;
};

}  // namespace braid

#include "server/graph/exported_graph.h"

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

absl::Status InGraph(const std::string& name, const absl::Status& status) {
  return absl::FailedPreconditionError(
      absl::StrCat("graph '", Excerpt(name), "' cannot be loaded: ", status.message()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ExportedGraph>> ExportedGraph::Load(const std::string& path,
                                                                         const std::string& name,
                                                                         const JsonField& program) {
  absl::StatusOr<std::shared_ptr<const Program>> read = Program::Read(program);
  if (!read.ok()) {
    return InGraph(name, read.status());
  }
  absl::StatusOr<std::vector<StoredTensor>> tensors = ReadStoredTensors(path, name, **read);
  if (!tensors.ok()) {
    return InGraph(name, tensors.status());
  }
  return std::shared_ptr<const ExportedGraph>(
      new ExportedGraph(*std::move(read), *std::move(tensors)));
}

std::unique_ptr<Executor> ExportedGraph::MakeExecutor(c10::Device device) const {
  return std::make_unique<Executor>(program_, PlaceTensors(tensors_, device), device);
}

std::unique_ptr<Executor> ExportedGraph::MakeExecutor(c10::Device device,
                                                      const std::vector<bool>& wanted) const {
  return std::make_unique<Executor>(program_->Select(wanted), PlaceTensors(tensors_, device),
                                    device);
}

}  // namespace braid

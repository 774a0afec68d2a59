#include "server/models/exported_graph.h"

#include <exception>
#include <utility>

#include "ATen/core/ivalue.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "c10/core/GradMode.h"
#include "server/base/text.h"
#include "torch/nativert/ModelRunnerHandle.h"

namespace braid {
namespace {

// The interpreter's tensors know nothing of autograd, and may be neither given a gradient nor
// changed: another tensor of the same memory may.
at::Tensor Ordinary(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    return tensor;
  }
  at::Tensor ordinary = at::empty({0}, tensor.options());
  ordinary.set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  return ordinary;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExportedGraph>> ExportedGraph::Load(const std::string& path,
                                                                   const std::string& name) {
  try {
    auto runner = std::make_unique<torch::nativert::ModelRunnerHandle>(path, name);
    return std::unique_ptr<ExportedGraph>(new ExportedGraph(std::move(runner)));
  } catch (const std::exception& failure) {
    // Its first line may end before it comes to the point.
    const std::string said = absl::StrReplaceAll(failure.what(), {{"\n", " "}});
    return absl::FailedPreconditionError(
        absl::StrCat("graph '", name, "' cannot be loaded: ", Excerpt(said)));
  }
}

ExportedGraph::ExportedGraph(std::unique_ptr<torch::nativert::ModelRunnerHandle> runner)
    : runner_(std::move(runner)) {}

ExportedGraph::~ExportedGraph() = default;

std::vector<at::Tensor> ExportedGraph::Run(std::vector<at::Tensor> inputs) {
  std::vector<c10::IValue> values(std::make_move_iterator(inputs.begin()),
                                  std::make_move_iterator(inputs.end()));
  inputs.clear();
  values = runner_->runWithFlatInputsAndOutputs(std::move(values));
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> outputs;
  outputs.reserve(values.size());
  for (const c10::IValue& value : values) {
    outputs.push_back(Ordinary(value.toTensor()));
  }
  return outputs;
}

}  // namespace braid

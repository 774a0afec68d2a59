#include "server/models/exported_graph.h"

#include <atomic>
#include <exception>
#include <utility>

#include "ATen/core/ivalue.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "c10/core/GradMode.h"
#include "c10/util/Registry.h"
#include "server/base/text.h"
#include "server/parallel/host_copy.h"
#include "torch/nativert/ModelRunnerHandle.h"

namespace {

// Whether LibTorch has been loaded, which is when it registers the interpreter's own kernels.
std::atomic<bool> libtorch_is_loaded = false;

}  // namespace

namespace torch::nativert {

class OpKernel;
class Node;
using KernelRegistry = c10::Registry<std::string, std::unique_ptr<OpKernel>, const Node*>;

// In the place of LibTorch's own, which the dynamic linker finds second, so that the interpreter
// finds none of the kernels that it has beside the dispatcher's. They take tensors for what they
// are not: a product of a number and of a tensor with gaps is garbage or writes out of bounds, of
// one of booleans is refused, and conjugation that is still to be made is forgotten.
__attribute__((visibility("default"))) KernelRegistry* StaticallyDispatchedCPUKernelRegistry() {
  static auto* const kRegistered = new KernelRegistry();
  static auto* const kNone = new KernelRegistry();
  return libtorch_is_loaded ? kNone : kRegistered;
}

}  // namespace torch::nativert

namespace braid {
namespace {

// The interpreter's tensors know nothing of autograd, and may be neither given a gradient nor
// changed: another tensor of the same memory may.
at::Tensor Ordinary(const at::Tensor& tensor) {
  if (!tensor.is_inference() || tensor.layout() != c10::kStrided) {
    return tensor;
  }
  const at::Tensor plain = Materialize(tensor);
  at::Tensor ordinary = at::empty({0}, plain.options());
  ordinary.set_(plain.storage(), plain.storage_offset(), plain.sizes(), plain.strides());
  return ordinary;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExportedGraph>> ExportedGraph::Load(const std::string& path,
                                                                   const std::string& name) {
  libtorch_is_loaded = true;
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

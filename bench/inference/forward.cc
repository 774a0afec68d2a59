#include "bench/inference/forward.h"

#include "ATen/Parallel.h"
#include "ATen/ops/from_blob.h"
#include "c10/core/GradMode.h"
#include "torch/csrc/jit/api/module.h"
#include "torch/csrc/jit/runtime/graph_executor.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid::bench {
namespace {

// Applies the settings of the bare loop. Both are per thread.
bool SetUpThread() {
  at::set_num_threads(1);
  torch::jit::setGraphExecutorOptimize(false);
  return true;
}

}  // namespace

struct Forward::Impl {
  torch::jit::Module module;
  int64_t features;
};

Forward::Forward(const std::string& path, int64_t features)
    : impl_(std::make_unique<Impl>(Impl{torch::jit::load(path), features})) {
  impl_->module.eval();
}

Forward::~Forward() = default;

void Forward::Run(const std::string& x, std::string* y) {
  thread_local const bool kSetUp = SetUpThread();
  static_cast<void>(kSetUp);
  const c10::AutoGradMode no_grad(false);
  const auto rows = static_cast<int64_t>(x.size() / sizeof(float)) / impl_->features;
  // LibTorch has no const tensors, but a forward pass does not write to its inputs.
  const at::Tensor input =
      at::from_blob(const_cast<char*>(x.data()), {rows, impl_->features}, at::kFloat);
  const at::Tensor output = impl_->module.forward({input}).toTensor().contiguous();
  y->assign(static_cast<const char*>(output.const_data_ptr()), output.nbytes());
}

}  // namespace braid::bench

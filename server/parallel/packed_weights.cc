#include "server/parallel/packed_weights.h"

#include <cstddef>
#include <exception>
#include <optional>
#include <string>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/ops/linear_ops.h"
#include "c10/core/GradMode.h"
#include "server/base/text.h"
#include "server/kernels/few_rows_product.h"
#include "server/kernels/onednn_product.h"
#include "server/telemetry/log.h"
#include "torch/library.h"

namespace braid {
namespace {

// Minimum number of elements. For smaller matrices the overhead of oneDNN exceeds its gain.
constexpr int64_t kMinElements = int64_t{1} << 18;
thread_local const PackedWeights* weights_of_thread = nullptr;

bool CanBePacked(const at::Tensor& weight) {
  return IsPlainFloat(weight) && weight.dim() == 2 && weight.is_contiguous() &&
         weight.numel() >= kMinElements && !weight.is_inference();
}

at::Tensor Pack(const at::Tensor& weight) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_reorder_linear_weight", "");
  torch::jit::Stack stack{weight, c10::IValue()};  // for any number of rows
  const c10::AutoGradMode no_grad(false);
  op.callBoxed(&stack);
  return stack.front().toTensor();
}

// True if oneDNN's product supports the arguments and is faster.
bool IsWorthwhile(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  return CanBePacked(weight) && IsPlainFloat(input) && input.dim() >= 2 &&
         input.size(-1) == weight.size(1) && input.numel() > kMaxFewRows * weight.size(1) &&
         FitsAsBias(bias, weight.size(0));
}

at::Tensor Linear(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  if (weights_of_thread != nullptr && IsFreeOfModes()) {
    if (AreFewRows(input, weight, bias)) {
      return FewRowsLinear(input, weight, bias);
    }
    if (IsWorthwhile(input, weight, bias)) {
      const at::Tensor* packed = weights_of_thread->Find(weight);
      if (packed != nullptr) {
        return OneDnnLinear(input, *packed, bias);
      }
    }
  }
  return at::_ops::linear::redispatch(BelowThreadKernels(keys), input, weight, bias);
}

}  // namespace

PackedWeights::PackedWeights(const ReplicaSet& replicas) {
  if (!HasOneDnn()) {
    return;
  }
  // By index in the replica's state.
  std::vector<std::shared_ptr<Packed>> shared;
  for (size_t r = 0; r < replicas.size(); ++r) {
    const std::vector<StateEntry> state = replicas.replica(r).state();
    for (size_t i = 0; i < state.size(); ++i) {
      const at::Tensor& weight = state[i].value;
      if (!state[i].is_parameter || !CanBePacked(weight)) {
        continue;
      }
      shared.resize(state.size());
      if (shared[i] == nullptr) {
        shared[i] = std::make_shared<Packed>();
      }
      entries_.try_emplace(weight.const_data_ptr(), Entry{weight, weight._version(), shared[i]});
    }
  }
}

const at::Tensor* PackedWeights::Find(const at::Tensor& weight) const {
  const auto found = entries_.find(weight.const_data_ptr());
  if (found == entries_.end()) {
    return nullptr;
  }
  const Entry& entry = found->second;
  if (weight.sizes() != entry.weight.sizes() || weight._version() != entry.version ||
      entry.weight._version() != entry.version) {
    return nullptr;
  }
  absl::call_once(entry.packed->once, [&] {
    try {
      entry.packed->value = Pack(entry.weight);
    } catch (const std::exception& failure) {
      // An exception must not leave call_once(): the next caller would block forever.
      Log(LogModule::kModels)
          .warn("linear layers: a matrix of {} bytes is not packed ({})", entry.weight.nbytes(),
                std::string(Excerpt(failure.what())));
    }
  });
  return entry.packed->value.defined() ? &entry.packed->value : nullptr;
}

PackedWeights::Use::Use(const PackedWeights& weights) : outer_(weights_of_thread) {
  weights_of_thread = &weights;
}

PackedWeights::Use::~Use() { weights_of_thread = outer_; }

}  // namespace braid

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) { library.impl("linear", &braid::Linear); }

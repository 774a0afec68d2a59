#include "server/devices/random.h"

#include <mutex>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/jit_type.h"
#include "ATen/core/stack.h"
#include "torch/library.h"

namespace braid {
namespace {

thread_local const at::Generator* generator_of_thread = nullptr;

bool MayBeGivenGenerator(const c10::Argument& argument) {
  static const c10::TypePtr kType = c10::OptionalType::create(c10::GeneratorType::get());
  return *argument.type() == *kType;
}

// Operators without tensors are left alone: those that they are made of come here.
bool OnCpu(c10::DispatchKeySet keys) {
  return keys.highestBackendKey() == c10::BackendComponent::CPUBit;
}

// Gives the operator the thread's generator where it was given none.
void DrawFromThread(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  if (generator_of_thread != nullptr && OnCpu(keys)) {
    const auto& arguments = op.schema().arguments();
    for (size_t a = 0; a < arguments.size(); ++a) {
      c10::IValue& given = torch::jit::peek(*stack, a, arguments.size());
      if (MayBeGivenGenerator(arguments[a]) && given.isNone()) {
        given = *generator_of_thread;
      }
    }
  }
  op.redispatchBoxed(BelowThreadKernels(keys), stack);
}

// Whatever is random in LibTorch ends in an operator that takes a generator.
void RegisterRandomOperators(torch::Library& library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (name.getNamespace() != "aten" || !op) {
      continue;
    }
    for (const c10::Argument& argument : op->schema().arguments()) {
      if (MayBeGivenGenerator(argument)) {
        library.impl(c10::toString(name).c_str(),
                     torch::CppFunction::makeFromBoxedFunction<&DrawFromThread>());
      }
    }
  }
}

}  // namespace

RandomSeedGuard::RandomSeedGuard(c10::Device device, uint64_t seed) : outer_(generator_of_thread) {
  if (device.is_cpu()) {
    generator_ = at::detail::createCPUGenerator(seed);
    generator_of_thread = &generator_;
    kernels_.emplace();
    return;
  }
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

RandomSeedGuard::~RandomSeedGuard() { generator_of_thread = outer_; }

}  // namespace braid

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) { braid::RegisterRandomOperators(library); }

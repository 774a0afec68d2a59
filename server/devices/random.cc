#include "server/devices/random.h"

#include <array>
#include <cstddef>
#include <mutex>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/enum_tag.h"
#include "ATen/core/jit_type.h"
#include "ATen/core/stack.h"
#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "torch/library.h"

namespace braid {
namespace {

thread_local RandomSeedGuard* guard_of_thread = nullptr;

bool IsOptionalGenerator(const c10::Argument& argument) {
  static const c10::TypePtr kType = c10::OptionalType::create(c10::GeneratorType::get());
  return *argument.type() == *kType;
}

void DrawForThread(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  if (guard_of_thread != nullptr) {
    guard_of_thread->Draw(op, keys, stack);
  } else {
    op.redispatchBoxed(BelowThreadKernels(keys), stack);
  }
}

bool Draws(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
         absl::c_any_of(op.schema().arguments(), IsOptionalGenerator);
}

void RegisterRandomOperators(torch::Library& library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (name.getNamespace() == "aten" && op && Draws(*op)) {
      library.impl(c10::toString(name).c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&DrawForThread>());
    }
  }
}

// Returns the lock of the default generator of `device`, which LibTorch has once per process.
absl::Mutex& MutexOf(c10::Device device) {
  static std::array<absl::Mutex, 64> mutexes;
  return mutexes[static_cast<size_t>(device.index()) % mutexes.size()];
}

}  // namespace

RandomSeedGuard::RandomSeedGuard(c10::Device device, uint64_t seed)
    : RandomSeedGuard(device.is_cpu() ? at::detail::createCPUGenerator(seed)
                                      : at::globalContext().defaultGenerator(device),
                      seed, /*shared=*/!device.is_cpu()) {}

RandomSeedGuard::RandomSeedGuard(at::Generator shared, uint64_t seed)
    : RandomSeedGuard(std::move(shared), seed, /*shared=*/true) {}

RandomSeedGuard::RandomSeedGuard(at::Generator generator, uint64_t seed, bool shared)
    : generator_(std::move(generator)),
      shared_(shared),
      seed_(seed),
      outer_(std::exchange(guard_of_thread, this)) {}

RandomSeedGuard::~RandomSeedGuard() { guard_of_thread = outer_; }

void RandomSeedGuard::Draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  const auto call = [&] { op.redispatchBoxed(BelowThreadKernels(keys), stack); };
  // Composite operators without tensor arguments pass: the operators that they call are handled.
  if (drawing_ || keys.highestBackendKey() != generator_.key_set().highestBackendKey()) {
    call();
    return;
  }
  if (!shared_) {
    const auto& arguments = op.schema().arguments();
    for (size_t a = 0; a < arguments.size(); ++a) {
      c10::IValue& given = torch::jit::peek(*stack, a, arguments.size());
      if (IsOptionalGenerator(arguments[a]) && given.isNone()) {
        given = generator_;
      }
    }
    call();
    return;
  }
  const absl::MutexLock alone(&MutexOf(generator_.device()));
  drawing_ = true;
  const absl::Cleanup drawn = [this] { drawing_ = false; };
  {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    if (state_.defined()) {
      generator_.set_state(state_);
    } else {
      generator_.set_current_seed(seed_);
    }
  }
  call();
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  state_ = generator_.get_state();
}

}  // namespace braid

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) { braid::RegisterRandomOperators(library); }

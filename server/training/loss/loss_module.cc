#include "server/training/loss/loss_module.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/models/torchscript/module_state.h"
#include "server/training/loss/loss_proof.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid {
namespace {

// Errors that the module raises are for the client. Running out of memory is not the module's
// fault.
absl::Status Named(const std::string& field, absl::string_view what, const absl::Status& status) {
  if (status.code() != absl::StatusCode::kInternal) {
    return status;
  }
  return InvalidField(field, absl::StrCat(what, status.message()));
}

bool IsTensor(const c10::TypePtr& type) { return type->isSubtypeOf(*c10::TensorType::get()); }

bool Fits(const c10::FunctionSchema& schema) {
  const std::vector<c10::Argument>& arguments = schema.arguments();
  if (arguments.size() < 3 || schema.returns().size() != 1) {
    return false;
  }
  for (size_t i = 1; i < arguments.size(); ++i) {
    const bool fits = i <= 2 ? c10::TensorType::get()->isSubtypeOf(*arguments[i].type())
                             : arguments[i].default_value().has_value();
    if (!fits) {
      return false;
    }
  }
  const c10::TypePtr& result = schema.returns()[0].type();
  return IsTensor(result) || result->kind() == c10::TypeKind::AnyType;
}

absl::Status CheckForward(const torch::jit::Module& module, const std::string& field) {
  const std::optional<torch::jit::Method> forward = module.find_method("forward");
  if (!forward) {
    return InvalidField(field, "has no forward method (expected forward(output, target))");
  }
  const c10::FunctionSchema& schema = forward->function().getSchema();
  if (Fits(schema)) {
    return absl::OkStatus();
  }
  std::ostringstream text;
  text << schema;
  return InvalidField(
      field, absl::StrCat("is ", text.str(),
                          " (expected forward(self, output: Tensor, target: Tensor) -> Tensor)"));
}

// Sets evaluation mode, in which loss modules always run.
absl::Status CheckStateless(const torch::jit::Module& module, const std::string& field) {
  std::vector<StateChange> changes;
  const absl::Status status = CatchTorch([&] {
    changes = FindStateChanges(module, Modes::kEval);
    return absl::OkStatus();
  });
  BRAID_RETURN_IF_ERROR(Named(field, "cannot be followed: ", status));
  if (changes.empty()) {
    return absl::OkStatus();
  }
  return InvalidField(
      field, absl::StrCat("keeps state: its forward ", Describe(changes.front()),
                          " (use a local variable, or a loss that the model computes, with a "
                          "buffer)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LossModule>> LossModule::Load(std::string bytes, std::string field) {
  std::unique_ptr<LossModule> loaded(new LossModule(std::move(bytes), std::move(field)));
  std::optional<Copy> copy;
  const absl::Status status = CatchTorch([&] {
    copy = loaded->Make(c10::kCPU);
    return absl::OkStatus();
  });
  BRAID_RETURN_IF_ERROR(Named(loaded->field_, "cannot be loaded as TorchScript: ", status));
  BRAID_RETURN_IF_ERROR(CheckForward(copy->module, loaded->field_));
  BRAID_RETURN_IF_ERROR(CheckStateless(copy->module, loaded->field_));
  loaded->GiveBack(*std::move(copy));
  return loaded;
}

absl::StatusOr<at::Tensor> LossModule::Compute(const at::Tensor& output, const at::Tensor& target) {
  Copy copy = Take(output.device());
  c10::IValue result;
  const absl::Status status = CatchTorch([&] {
    result = copy.module.forward({output, target});
    return absl::OkStatus();
  });
  // Drops a copy that failed, because it may be partly modified.
  BRAID_RETURN_IF_ERROR(Named(field_, "the module failed: ", status));
  GiveBack(std::move(copy));
  if (!result.isTensor()) {
    return Unfit(absl::StrCat("a ", result.tagKind(), " (expected a tensor)"));
  }
  const at::Tensor& loss = result.toTensor();
  if (!loss.defined() || loss.numel() != 1 || !loss.is_floating_point()) {
    std::ostringstream text;
    text << "a tensor, " << loss.toString() << " " << loss.sizes();
    return Unfit(absl::StrCat(text.str(), " (expected a floating-point tensor of one element)"));
  }
  if (c10::GradMode::is_enabled() && !loss.requires_grad()) {
    return Unfit("a loss that has no gradient (expected one that depends on the output)");
  }
  return loss.reshape({});
}

LossModule::Proof LossModule::Proof::Of(const at::Tensor& targets) {
  const auto [least, most] = targets.aminmax();
  return {least.item<double>(), most.item<double>(), c10::GradMode::is_enabled()};
}

bool LossModule::Proof::Covers(const Proof& other) const {
  return least <= other.least && most >= other.most && gradients >= other.gradients;
}

bool LossModule::IsProven(const at::Tensor& targets) const {
  if (targets.numel() == 0) {
    return true;
  }
  const Proof wanted = Proof::Of(targets);
  const absl::MutexLock lock(&mu_);
  return proof_ && proof_->Covers(wanted);
}

absl::Status LossModule::Prove(const at::Tensor& outputs, const at::Tensor& targets,
                               Reduction reduction) {
  Proof proof = Proof::Of(targets);
  const absl::Status status =
      ProveParts([this](const at::Tensor& output,
                        const at::Tensor& target) { return Compute(output, target); },
                 outputs, targets, reduction, proof.gradients);
  if (!status.ok()) {
    const bool named = absl::StartsWith(status.message(), field_);
    return named ? status
                 : absl::Status(status.code(), absl::StrCat(field_, ": ", status.message()));
  }
  const absl::MutexLock lock(&mu_);
  if (proof_ && proof_->gradients >= proof.gradients) {
    proof.least = std::min(proof.least, proof_->least);
    proof.most = std::max(proof.most, proof_->most);
  }
  proof_ = proof;
  return absl::OkStatus();
}

LossModule::Copy LossModule::Make(c10::Device device) const {
  std::istringstream in(bytes_);
  Copy copy{device, torch::jit::load(in, device, /*load_debug_files=*/false)};
  copy.module.eval();
  for (at::Tensor parameter : copy.module.parameters()) {
    parameter.set_requires_grad(false);
  }
  return copy;
}

LossModule::Copy LossModule::Take(c10::Device device) {
  {
    const absl::MutexLock lock(&mu_);
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const Copy& copy) { return copy.device == device; });
    if (found != free_.end()) {
      Copy copy = std::move(*found);
      free_.erase(found);
      return copy;
    }
  }
  return Make(device);
}

void LossModule::GiveBack(Copy copy) {
  const absl::MutexLock lock(&mu_);
  free_.push_back(std::move(copy));
}

absl::Status LossModule::Unfit(absl::string_view what) const {
  return absl::FailedPreconditionError(absl::StrCat(field_, ": the module returned ", what));
}

}  // namespace braid

// Loss supplied by the client: a TorchScript module, forward(output, target) -> Tensor, without
// state between calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "c10/core/Device.h"
#include "server/training/trainer_spec.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Owned by a Loss. Thread-safe: each call runs on a copy of the module that no other call uses.
class LossModule {
 public:
  // INVALID_ARGUMENT naming `field` ("losses[0].module") if `bytes` are not a TorchScript file, or
  // forward does not take two tensors and return one, or changes an attribute of the module.
  static absl::StatusOr<std::unique_ptr<LossModule>> Load(std::string bytes, std::string field);

  // Returns the module's value, 0-dim, in evaluation mode. The module may keep or modify the
  // arguments. With gradients enabled, `output` requires one. INVALID_ARGUMENT if the module fails,
  // FAILED_PRECONDITION if its value is not a loss; both name `field`.
  absl::StatusOr<at::Tensor> Compute(const at::Tensor& output, const at::Tensor& target);

  // Returns true if Prove() has succeeded for a range of targets that includes `targets`; with
  // gradients enabled, also for gradients.
  bool IsProven(const at::Tensor& targets) const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls ProveParts(). FAILED_PRECONDITION names `field`.
  absl::Status Prove(const at::Tensor& outputs, const at::Tensor& targets, Reduction reduction)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The range of the targets that the proof used.
  struct Proof {
    double least = 0;
    double most = 0;
    bool gradients = false;

    static Proof Of(const at::Tensor& targets);
    bool Covers(const Proof& other) const;
  };

  struct Copy {
    c10::Device device;
    torch::jit::Module module;
  };

  LossModule(std::string bytes, std::string field)
      : bytes_(std::move(bytes)), field_(std::move(field)) {}

  Copy Make(c10::Device device) const;
  Copy Take(c10::Device device) ABSL_LOCKS_EXCLUDED(mu_);
  void GiveBack(Copy copy) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Unfit(absl::string_view what) const;

  const std::string bytes_;
  const std::string field_;

  mutable absl::Mutex mu_;
  std::vector<Copy> free_ ABSL_GUARDED_BY(mu_);
  std::optional<Proof> proof_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid

// A Replica that runs an InferencePackage. It has no parameters and nothing to differentiate.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/models/inference_only/inference_package.h"
#include "server/models/model_config.h"
#include "server/parallel/replica.h"

namespace braid {

// For each input of `interface` the index of the input of `config` that it is: by name,
// NAME__<number> or order. Fills what the package knows better: sizes that are fixed, and the most
// rows. FAILED_PRECONDITION if they do not fit each other.
absl::StatusOr<std::vector<size_t>> BindPackageInputs(const PackageInterface& interface,
                                                      ModelConfig* config);

class PackageReplica final : public Replica {
 public:
  // `config` has been through BindPackageInputs(), which gave `order`. A batch of fewer rows than
  // the package takes is filled up with copies of its last row, whose outputs are dropped.
  static absl::StatusOr<std::unique_ptr<Replica>> Create(
      std::shared_ptr<const InferencePackage> package, ModelConfig config,
      std::vector<size_t> order, c10::Device device);

  absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                  Mode mode) override;

  // Placing a trainer asks this first, and no more where it is refused.
  absl::Status CheckTrainable(std::optional<c10::ScalarType> autocast) const override;
  absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(const std::vector<at::Tensor>&,
                                                             Mode) override {
    return NotTrainable();
  }
  absl::StatusOr<Gradients> Backward(const std::vector<at::Tensor>&, const OnGradient&) override {
    return NotTrainable();
  }
  void DropGraph() override {}
  const std::vector<Parameter>& parameters() const override { return no_parameters_; }
  void Freeze(size_t) override {}
  void BindParameter(size_t, const at::Tensor&) override {}
  std::vector<at::Tensor> buffers() const override { return {}; }
  void SetBuffers(const std::vector<at::Tensor>&) override {}
  std::vector<StateEntry> state() const override { return {}; }
  // nullptr: only trainers are copied from replicas.
  std::unique_ptr<Replica> Clone() const override { return nullptr; }
  absl::Status CheckStages(const std::vector<std::string>&) const override {
    return NotTrainable();
  }
  absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole&,
                                                      c10::Device) const override {
    return NotTrainable();
  }
  std::vector<NewFile> Files() const override { return {}; }

 private:
  absl::Status NotTrainable() const;

  PackageReplica(std::shared_ptr<const InferencePackage> package, ModelConfig config,
                 std::vector<size_t> order, std::unique_ptr<PackageRunner> runner);

  // As the package takes `input`, the `index`-th of its own.
  absl::StatusOr<at::Tensor> Prepare(size_t index, const at::Tensor& input) const;

  const std::shared_ptr<const InferencePackage> package_;
  const ModelConfig config_;
  const std::vector<size_t> order_;
  const std::vector<Parameter> no_parameters_;
  const std::unique_ptr<PackageRunner> runner_;
};

}  // namespace braid

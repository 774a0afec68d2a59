// Fake replica whose forward pass is a function of the test.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/parallel/replica.h"

namespace braid {

// Has the given parameters, no buffers and no backward pass.
class PuppetReplica final : public Replica {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<absl::StatusOr<Tensors>(const Tensors&)>;

  explicit PuppetReplica(Function forward, std::vector<Parameter> parameters = {})
      : forward_(std::move(forward)), parameters_(std::move(parameters)) {}

  absl::StatusOr<Tensors> Forward(const Tensors& inputs, Mode) override { return forward_(inputs); }
  absl::StatusOr<Tensors> ForwardForTraining(const Tensors& inputs, Mode) override {
    return forward_(inputs);
  }
  absl::StatusOr<Gradients> Backward(const Tensors&, const OnGradient&) override {
    return absl::UnimplementedError("a puppet has no backward pass");
  }
  void DropGraph() override {}

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Freeze(size_t) override {}
  void BindParameter(size_t index, const at::Tensor& storage) override {
    parameters_[index].value = storage;
  }
  void BindEntry(size_t index, const at::Tensor& storage) override {
    BindParameter(index, storage);
  }
  Tensors buffers() const override { return {}; }
  void SetBuffers(const Tensors&) override {}
  std::vector<StateEntry> state() const override {
    std::vector<StateEntry> entries;
    for (const Parameter& parameter : parameters_) {
      entries.push_back({parameter.name, parameter.value, /*is_parameter=*/true});
    }
    return entries;
  }
  absl::Status CheckStages(const std::vector<std::string>&) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole&,
                                                      c10::Device) const override {
    return std::make_unique<PuppetReplica>(forward_, parameters_);
  }
  std::vector<NewFile> Files() const override { return {}; }

 private:
  const Function forward_;
  std::vector<Parameter> parameters_;
};

}  // namespace braid

// A Model that is no file's.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "server/models/model.h"

namespace braid {

class MadeModel final : public Model {
 public:
  using Make = std::function<std::unique_ptr<Replica>()>;

  MadeModel(ModelConfig config, Make make) : config_(std::move(config)), make_(std::move(make)) {}

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(c10::Device) const override {
    return make_();
  }

 private:
  const ModelConfig config_;
  const Make make_;
};

}  // namespace braid

// A model.pt2 that can be run but not trained.
#pragma once

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// A copy of the model, for one thread.
class PackageRunner {
 public:
  virtual ~PackageRunner() = default;

  // `inputs` as PackageInterface has them, contiguous; the outputs in their order. Throws what
  // LibTorch throws.
  virtual std::vector<at::Tensor> Run(const std::vector<at::Tensor>& inputs) = 0;
};

// Immutable.
class InferencePackage {
 public:
  virtual ~InferencePackage() = default;

  virtual const PackageInterface& interface() const = 0;
  // As in "<model> is <kind>".
  virtual absl::string_view kind() const = 0;
  // On `device`; the package outlives it. FAILED_PRECONDITION if it is for another kind of device.
  virtual absl::StatusOr<std::unique_ptr<PackageRunner>> MakeRunner(c10::Device device) const = 0;
};

}  // namespace braid

// Interface of a model.pt2 that can be run but not trained.
#pragma once

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// Instance of the model on one device. Used by one thread at a time.
class PackageRunner {
 public:
  virtual ~PackageRunner() = default;

  // Runs the model. inputs: contiguous, in the order of PackageInterface::inputs. Returns the
  // outputs in order, without None. Throws what LibTorch throws.
  virtual std::vector<at::Tensor> Run(const std::vector<at::Tensor>& inputs) = 0;
};

// Immutable and thread-safe.
class InferencePackage {
 public:
  virtual ~InferencePackage() = default;

  virtual const PackageInterface& interface() const = 0;
  // Noun phrase for messages: "<model> is <kind>".
  virtual absl::string_view kind() const = 0;
  // Creates a runner on `device`; the package must outlive it. FAILED_PRECONDITION if the package
  // is for another type of device.
  virtual absl::StatusOr<std::unique_ptr<PackageRunner>> MakeRunner(c10::Device device) const = 0;
};

}  // namespace braid

// An AOTInductor package, model.pt2, unpacked.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/models/aoti_interface.h"

namespace torch::inductor {
class AOTIModelContainerRunner;
}  // namespace torch::inductor

namespace braid {

// Immutable. Its files lie in a folder of its own in $TMPDIR, or /tmp, until it goes.
class AotiPackage {
 public:
  // FAILED_PRECONDITION that says what is wrong with the file, or what this machine lacks to run
  // it; RESOURCE_EXHAUSTED if it cannot be unpacked.
  static absl::StatusOr<std::shared_ptr<const AotiPackage>> Open(const std::string& path);
  ~AotiPackage();
  AotiPackage(const AotiPackage&) = delete;
  AotiPackage& operator=(const AotiPackage&) = delete;

  const AotiInterface& interface() const { return interface_; }

  // A copy of the model on `device`, for one thread; the package outlives it. FAILED_PRECONDITION
  // if it is compiled for another kind of device.
  absl::StatusOr<std::unique_ptr<torch::inductor::AOTIModelContainerRunner>> MakeRunner(
      c10::Device device) const;

 private:
  AotiPackage() = default;
  absl::Status Unpack(const std::string& path);
  absl::Status ReadMetadata(const std::string& text);

  std::string folder_;
  std::string library_;  // the compiled code's path
  std::string device_;   // "cpu" or "cuda"
  std::string compute_capability_;
  AotiInterface interface_;
};

}  // namespace braid

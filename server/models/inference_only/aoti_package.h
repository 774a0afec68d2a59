// AOTInductor package, model.pt2: compiled code.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "server/models/inference_only/inference_package.h"

namespace braid {

// Unpacks the package to a temporary folder in $TMPDIR, or /tmp, and deletes the folder when it is
// destroyed. Immutable and thread-safe.
class AotiPackage final : public InferencePackage {
 public:
  // Unpacks the file. FAILED_PRECONDITION if it is damaged or was compiled for another machine or
  // PyTorch release; RESOURCE_EXHAUSTED if it cannot be unpacked.
  static absl::StatusOr<std::shared_ptr<const InferencePackage>> Open(const std::string& path);
  ~AotiPackage() override;
  AotiPackage(const AotiPackage&) = delete;
  AotiPackage& operator=(const AotiPackage&) = delete;

  const PackageInterface& interface() const override { return interface_; }
  absl::string_view kind() const override { return "an AOTInductor package"; }

  absl::StatusOr<std::unique_ptr<PackageRunner>> MakeRunner(c10::Device device) const override;

 private:
  AotiPackage() = default;
  absl::Status Unpack(const std::string& path);
  absl::Status ReadMetadata(const std::string& text);

  std::string folder_;
  std::string library_;  // path of the compiled code
  std::string device_;   // "cpu" or "cuda"
  std::string compute_capability_;
  PackageInterface interface_;
};

// Calls `run`. Compiled code reports every error as "API call failed". Instead of that, this
// function throws c10::OutOfMemoryError if an allocation failed during the call
// (OutOfMemoryErrors()), and otherwise an error that says where the message was logged. Other
// exceptions pass through.
std::vector<at::Tensor> RunCompiledCode(absl::FunctionRef<std::vector<at::Tensor>()> run);

}  // namespace braid

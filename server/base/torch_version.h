// LibTorch release that the server is built with.
//
// Code that has to differ between LibTorch releases belongs here, so that a new release changes one
// file.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "torch/version.h"

namespace braid {

inline constexpr absl::string_view kTorchVersion = TORCH_VERSION;

// Returns the release in a PyTorch version: "2.15.0" for "2.15.0+cpu".
inline std::string TorchRelease(absl::string_view version = kTorchVersion) {
  return std::string(version.substr(0, version.find('+')));
}

}  // namespace braid

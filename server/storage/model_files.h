// Names of a model's files in the folder of a version.
#pragma once

#include <filesystem>
#include <string>

namespace braid {

inline constexpr char kTorchScriptFile[] = "model.pt";
// Exported pair, exported program or AOTInductor package.
inline constexpr char kPackageFile[] = "model.pt2";
// Weights of an exported pair.
inline constexpr char kWeightsFile[] = "model.safetensors";
// Returns the path of the weights of an exported pair at `path`.
inline std::string WeightsBeside(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".safetensors");
}

}  // namespace braid

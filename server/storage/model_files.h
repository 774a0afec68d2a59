// What a model's files are called in its version's folder.
#pragma once

#include <filesystem>
#include <string>

namespace braid {

inline constexpr char kTorchScriptFile[] = "model.pt";
// An exported pair, or an AOTInductor package.
inline constexpr char kPackageFile[] = "model.pt2";
// Of an exported pair in kPackageFile.
inline constexpr char kWeightsFile[] = "model.safetensors";
// Of an exported pair at `path`, which may have another name.
inline std::string WeightsBeside(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".safetensors");
}

}  // namespace braid

// What a model's files are called in its version's folder.
#pragma once

namespace braid {

inline constexpr char kTorchScriptFile[] = "model.pt";
// An exported pair, or an AOTInductor package.
inline constexpr char kPackageFile[] = "model.pt2";
// Of an exported pair.
inline constexpr char kWeightsFile[] = "model.safetensors";

}  // namespace braid

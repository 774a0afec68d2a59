// What LibTorch writes to stderr by itself.
#pragma once

namespace braid {

// Limits it to errors: its warnings are for people who build models. To be called before other
// threads use LibTorch.
void LimitTorchLog();

}  // namespace braid

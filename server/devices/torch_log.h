// What LibTorch writes to stderr by itself.
#pragma once

namespace braid {

// Errors alone: its warnings are for who builds models, such as that its interpreter of exported
// graphs has no kernel of its own for an operator. Before other threads use LibTorch.
void LimitTorchLog();

}  // namespace braid

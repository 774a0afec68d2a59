// Mode of a forward pass.
#pragma once

namespace braid {

enum class Mode { kTrain, kEval };

}  // namespace braid

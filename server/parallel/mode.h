// How a forward pass runs.
#pragma once

namespace braid {

enum class Mode { kTrain, kEval };

}  // namespace braid

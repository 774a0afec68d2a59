// Decides which models of the repository are served.
#pragma once

namespace braid {

enum class ControlMode {
  kNone,      // all models that exist at start
  kExplicit,  // models that clients or --load_model ask for
  kPoll,      // all models; follows changes of the repository
};

}  // namespace braid

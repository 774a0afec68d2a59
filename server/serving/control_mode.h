// Who says which models are served.
#pragma once

namespace braid {

enum class ControlMode {
  kNone,      // all that the repository holds at the start
  kExplicit,  // those that are asked for
  kPoll,      // all that the repository holds at any time
};

}  // namespace braid

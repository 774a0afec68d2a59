// When each register of a graph's code is read for the last time.
#pragma once

#include <vector>

#include "server/graph/code.h"

namespace braid {

// Marks the last use of each register and the outputs that each instruction completes, and drops
// results and inputs that nobody reads. Outputs of code that writes to its values are final at its
// end.
void MarkLastUses(Code* code);

// Removes the outputs that are not `wanted`, which become None, and the instructions that only they
// need. Instructions with effects stay.
void RemoveOutputs(const std::vector<bool>& wanted, Code* code);

}  // namespace braid

// Liveness analysis and dead code elimination.
#pragma once

#include <vector>

#include "server/graph/code.h"

namespace braid {

// Marks the last use of each register and the outputs that are final after each instruction. Drops
// unused results and inputs. If the code modifies values, outputs are final only at the end.
void MarkLastUses(Code* code);

// Replaces outputs that are not `wanted` by None and removes instructions that compute only
// these, except for instructions with side effects.
void RemoveOutputs(const std::vector<bool>& wanted, Code* code);

}  // namespace braid

// The command line of braid-server.
#pragma once

#include <optional>

#include "server/options.h"

namespace braid {

// Reads the flags. nullopt: the program is to end with `*exit_code`, what there was to say has been
// said: 0 after --help or --version, 2 after a flag that is wrong, with one line that names it.
std::optional<Options> ParseFlags(int argc, const char* const* argv, int* exit_code);

}  // namespace braid

// Command line of braid-server.
#pragma once

#include <optional>

#include "server/options.h"

namespace braid {

// Parses the flags. Returns nullopt if the process must exit with `*exit_code`: 0 after --help or
// --version, 2 after an invalid flag, which is reported on stderr.
std::optional<Options> ParseFlags(int argc, const char* const* argv, int* exit_code);

}  // namespace braid

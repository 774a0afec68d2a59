// Exception handling for main() of the benchmark programs.
#pragma once

#include <cstdio>
#include <exception>

namespace braid::bench {

// Returns the exit status of `run`. If it throws, prints `name` and the exception's message to
// stderr and returns 1.
inline int RunMain(const char* name, int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace braid::bench

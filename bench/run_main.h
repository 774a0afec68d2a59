// What main() of these programs does with an exception that nobody else takes.
#pragma once

#include <cstdio>
#include <exception>

namespace braid::bench {

// `run`'s exit status; 1 if it throws, after what it threw went to stderr, behind `name`.
inline int RunMain(const char* name, int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace braid::bench

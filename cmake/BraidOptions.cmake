# braid::options: language level, warnings and sanitizers for Braid's targets. Link it PRIVATE.
add_library(braid_options INTERFACE)
add_library(braid::options ALIAS braid_options)
target_compile_features(braid_options INTERFACE cxx_std_20)
target_compile_options(
  braid_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror
                          $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

if(BRAID_SANITIZE)
  if("thread" IN_LIST BRAID_SANITIZE AND "address" IN_LIST BRAID_SANITIZE)
    message(FATAL_ERROR "BRAID_SANITIZE: thread and address cannot be combined")
  endif()
  list(JOIN BRAID_SANITIZE "," sanitizers)
  # Applies to all targets, including the vendored Abseil: a partly instrumented program gives false reports.
  # g++ reports false positives of -Wmaybe-uninitialized in instrumented code.
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer
                      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${sanitizers})
  if("thread" IN_LIST BRAID_SANITIZE)
    # LibTorch's headers have a fence, which the sanitizer does not follow. It orders Python's objects only.
    target_compile_options(braid_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
  if("undefined" IN_LIST BRAID_SANITIZE)
    # LibTorch is built without the type information that vptr requires.
    add_compile_options(-fno-sanitize=vptr)
    add_link_options(-fno-sanitize=vptr)
  endif()
endif()

# LibTorch's headers fill GCC's heap, of which a collection frees little: a tenth of the compile time.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=2000000)
endif()

# Runs clang-tidy on each file as it is compiled, so that only changed files are checked again.
if(NOT BRAID_CLANG_TIDY)
  return()
endif()
find_program(BRAID_CLANG_TIDY_PROGRAM clang-tidy
             HINTS ${BRAID_VENV}/bin NO_CMAKE_ENVIRONMENT_PATH REQUIRED)
mark_as_advanced(BRAID_CLANG_TIDY_PROGRAM)
set(CMAKE_CXX_CLANG_TIDY ${BRAID_CLANG_TIDY_PROGRAM} --quiet)

# An unused macro with the hash of the checks: changed checks change the command, so that all files are
# checked again.
set(checks "")
foreach(file IN ITEMS .clang-tidy tests/.clang-tidy)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(SHA256 ${PROJECT_SOURCE_DIR}/${file} checksum)
  string(APPEND checks ${checksum})
endforeach()
string(SHA256 checks "${checks}")
list(APPEND CMAKE_CXX_CLANG_TIDY --extra-arg=-DBRAID_CHECKS_${checks})

find_package(GTest REQUIRED)

# braid_test(<name> SOURCES … LIBS … [LABEL unit] [ALONE …]): a GoogleTest program. The whole program is one
# test in ctest, because its cases take milliseconds and loading LibTorch for each case would take longer.
# ALONE: sources that define a name of a neighbour (see braid_unity).
function(braid_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL" "SOURCES;LIBS;ALONE")
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  # Tests spend their time in LibTorch and in waiting; without optimization they compile twice as fast.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0>)
  target_link_libraries(${name} PRIVATE braid::options ${arg_LIBS} GTest::gmock GTest::gtest_main)
  braid_unity(${name} 4 EXCEPT ${arg_ALONE})
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT 900)
endfunction()

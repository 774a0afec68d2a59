# braid_unity(<target> <size> [EXCEPT <file>…]): compiles up to <size> files of a folder together. Most
# of a file's compile time goes to headers and to templates that its neighbours use as well.
#
# The files of a folder must not define the same name, anonymous namespaces included. EXCEPT lists
# those that do; they are compiled alone. Call it after the target's last source.
option(BRAID_UNITY "Compile the files of a folder together" OFF)

function(braid_unity target size)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "EXCEPT")
  if(NOT BRAID_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(REMOVE_ITEM sources ${arg_EXCEPT})
  list(SORT sources)
  set(last "")
  set(count ${size})
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    if(NOT "${folder}" STREQUAL "${last}" OR count EQUAL size)
      string(MAKE_C_IDENTIFIER ${source} group)
      set(count 0)
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    set(last "${folder}")
    math(EXPR count "${count} + 1")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

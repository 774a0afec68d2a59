# ccache where it is installed; the sloppiness is what it needs to cache precompiled headers.
find_program(BRAID_CCACHE ccache)
mark_as_advanced(BRAID_CCACHE)
if(BRAID_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${BRAID_CCACHE})
endif()

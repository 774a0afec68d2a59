# ccache where it is installed. The sloppiness is what it needs to cache precompiled headers; paths
# below the source are hashed as relative ones, so that one checkout finds what another compiled.
find_program(BRAID_CCACHE ccache)
mark_as_advanced(BRAID_CCACHE)
if(BRAID_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${BRAID_CCACHE})
endif()

# Uses ccache if it is installed. The sloppiness settings are required for precompiled headers. Paths below
# the source are hashed as relative ones, so that checkouts share the cache. The dependency file of the
# compiler (CCACHE_DEPEND) saves a run of the preprocessor.
find_program(BRAID_CCACHE ccache)
mark_as_advanced(BRAID_CCACHE)
if(BRAID_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 ${BRAID_CCACHE})
endif()

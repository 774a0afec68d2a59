# Defines braid::arrow (Arrow C++ and its Parquet library) and braid::arrow_s3 (its file system for S3), from CMAKE_PREFIX_PATH or from the pyarrow wheel
# in BRAID_VENV. The wheel has headers and versioned libraries, but neither CMake files nor plain .so names.
file(GLOB site_packages ${BRAID_VENV}/lib/python3*/site-packages)
set(BRAID_ARROW_SO_VERSION 2600)

find_path(ARROW_INCLUDE_DIR arrow/api.h HINTS ${site_packages}/pyarrow PATH_SUFFIXES include)
find_library(ARROW_LIBRARY NAMES libarrow.so.${BRAID_ARROW_SO_VERSION}
             HINTS ${site_packages}/pyarrow)
find_library(PARQUET_LIBRARY NAMES libparquet.so.${BRAID_ARROW_SO_VERSION}
             HINTS ${site_packages}/pyarrow)
find_library(ARROW_S3_LIBRARY NAMES libarrow_s3.so.${BRAID_ARROW_SO_VERSION}
             HINTS ${site_packages}/pyarrow)
mark_as_advanced(ARROW_INCLUDE_DIR ARROW_LIBRARY ARROW_S3_LIBRARY PARQUET_LIBRARY)
if(NOT ARROW_INCLUDE_DIR
   OR NOT ARROW_LIBRARY
   OR NOT ARROW_S3_LIBRARY
   OR NOT PARQUET_LIBRARY)
  message(FATAL_ERROR "Arrow C++ not found: run scripts/setup.sh, or set CMAKE_PREFIX_PATH")
endif()
cmake_path(GET ARROW_LIBRARY PARENT_PATH arrow_lib)

add_library(braid_arrow INTERFACE)
add_library(braid::arrow ALIAS braid_arrow)
target_include_directories(braid_arrow SYSTEM INTERFACE ${ARROW_INCLUDE_DIR})
target_link_libraries(braid_arrow INTERFACE ${PARQUET_LIBRARY} ${ARROW_LIBRARY})
target_link_options(braid_arrow INTERFACE -Wl,-rpath,${arrow_lib})

add_library(braid_arrow_s3 INTERFACE)
add_library(braid::arrow_s3 ALIAS braid_arrow_s3)
target_link_libraries(braid_arrow_s3 INTERFACE ${ARROW_S3_LIBRARY} braid::arrow)

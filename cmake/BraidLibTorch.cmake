# Defines braid::torch (torch_cpu and c10) and braid::torch_cuda (with the CUDA runtime and NCCL), from
# CMAKE_PREFIX_PATH or from the wheels in BRAID_VENV that scripts/setup.sh installs.
#
# TorchConfig.cmake is not used: it fails without an installed CUDA toolkit and defines targets that
# shadow protobuf's. LibTorch's headers come last (-idirafter), because torch/include contains an old copy
# of protobuf's headers.
set(BRAID_VENV ${PROJECT_SOURCE_DIR}/.venv CACHE PATH
    "Python virtual environment with the wheels that scripts/setup.sh installs")
file(GLOB site_packages ${BRAID_VENV}/lib/python3*/site-packages)

find_path(TORCH_INCLUDE_DIR ATen/ATen.h HINTS ${site_packages}/torch PATH_SUFFIXES include)
find_library(TORCH_CPU_LIBRARY torch_cpu HINTS ${site_packages}/torch/lib)
find_library(TORCH_C10_LIBRARY c10 HINTS ${site_packages}/torch/lib)
if(NOT TORCH_INCLUDE_DIR OR NOT TORCH_CPU_LIBRARY OR NOT TORCH_C10_LIBRARY)
  message(FATAL_ERROR "LibTorch not found: run scripts/setup.sh, or set CMAKE_PREFIX_PATH")
endif()
cmake_path(GET TORCH_CPU_LIBRARY PARENT_PATH torch_lib)

add_library(braid_torch INTERFACE)
add_library(braid::torch ALIAS braid_torch)
target_compile_options(
  braid_torch INTERFACE "SHELL:-idirafter ${TORCH_INCLUDE_DIR}"
                        "SHELL:-idirafter ${TORCH_INCLUDE_DIR}/torch/csrc/api/include")
target_link_libraries(braid_torch INTERFACE ${TORCH_CPU_LIBRARY} ${TORCH_C10_LIBRARY})
# torch_cpu depends on libraries of the CUDA wheels, which it finds by its own rpath.
target_link_options(braid_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,-rpath,${torch_lib})

find_library(TORCH_CUDA_LIBRARY torch_cuda HINTS ${torch_lib})
find_library(C10_CUDA_LIBRARY c10_cuda HINTS ${torch_lib})
find_path(CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${site_packages}/nvidia/cu13/include
          PATHS /usr/local/cuda/include)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${site_packages}/nvidia/nccl/include)
find_library(CUDART_LIBRARY NAMES libcudart.so.13 libcudart.so
             HINTS ${site_packages}/nvidia/cu13/lib PATHS /usr/local/cuda/lib64)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${site_packages}/nvidia/nccl/lib)
mark_as_advanced(TORCH_INCLUDE_DIR TORCH_CPU_LIBRARY TORCH_C10_LIBRARY TORCH_CUDA_LIBRARY
                 C10_CUDA_LIBRARY CUDA_INCLUDE_DIR NCCL_INCLUDE_DIR CUDART_LIBRARY NCCL_LIBRARY)

if(TORCH_CUDA_LIBRARY AND C10_CUDA_LIBRARY AND CUDA_INCLUDE_DIR AND NCCL_INCLUDE_DIR
   AND CUDART_LIBRARY AND NCCL_LIBRARY)
  set(BRAID_WITH_CUDA ON)
  cmake_path(GET CUDART_LIBRARY PARENT_PATH cudart_lib)
  cmake_path(GET NCCL_LIBRARY PARENT_PATH nccl_lib)
  add_library(braid_torch_cuda INTERFACE)
  add_library(braid::torch_cuda ALIAS braid_torch_cuda)
  target_compile_options(braid_torch_cuda INTERFACE "SHELL:-idirafter ${CUDA_INCLUDE_DIR}"
                                                    "SHELL:-idirafter ${NCCL_INCLUDE_DIR}")
  target_link_libraries(
    braid_torch_cuda INTERFACE braid::torch -Wl,--no-as-needed ${TORCH_CUDA_LIBRARY}
                               ${C10_CUDA_LIBRARY} ${CUDART_LIBRARY} ${NCCL_LIBRARY}
                               -Wl,--as-needed)
  target_link_options(braid_torch_cuda INTERFACE -Wl,-rpath,${cudart_lib} -Wl,-rpath,${nccl_lib})
else()
  set(BRAID_WITH_CUDA OFF)
  message(STATUS "LibTorch has no CUDA build, or CUDA or NCCL headers are missing: building for CPUs only")
endif()

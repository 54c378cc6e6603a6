# The CUDA toolchain: sm_90a machine code and compute_80 PTX, the toolkit's shared libraries, cuDNN, NCCL.
set(CMAKE_CUDA_ARCHITECTURES OFF)  # MEGALITH_CUDA_ARCHITECTURES decides: this CMake knows no 90a
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one runtime for our objects and the libraries
if(CCACHE_PROGRAM AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that this nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)

set(MEGALITH_CUDA_ARCHITECTURES -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80
    CACHE STRING "nvcc's flags that choose the machine code and the PTX")
set(MEGALITH_CUDA_FLAGS ${MEGALITH_CUDA_ARCHITECTURES}
    -Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-missing-field-initializers,-Wno-unused-parameter
    -Xcompiler=-march=x86-64-v3,-ffile-prefix-map=${CMAKE_SOURCE_DIR}/= -lineinfo)
option(MEGALITH_CUDA_UNOPTIMIZED "Compile kernels in a third of the time, to be slow: for a machine without a GPU" OFF)
if(MEGALITH_CUDA_UNOPTIMIZED AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  list(APPEND MEGALITH_CUDA_FLAGS --Ofast-compile=max -Xptxas=--suppress-stack-size-warning)  # calls that it does not inline
endif()
if(MEGALITH_WERROR)
  list(APPEND MEGALITH_CUDA_FLAGS -Werror=all-warnings)
endif()

add_library(megalith_cuda INTERFACE)
target_include_directories(megalith_cuda SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR})
target_link_libraries(megalith_cuda INTERFACE CUDA::cudart ${CUDNN_LIBRARY} ${CMAKE_DL_LIBS})  # cuBLASLt: core/device/cuda/blas_library.cpp
add_library(megalith_nccl INTERFACE)
target_include_directories(megalith_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
target_link_libraries(megalith_nccl INTERFACE ${NCCL_LIBRARY})

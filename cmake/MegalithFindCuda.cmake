# What the CUDA backend needs: the toolkit from 12.8 on, cuDNN 9 and NCCL, headers and libraries, wherever
# CUDAToolkit_ROOT, CUDNN_ROOT and NCCL_ROOT (CMake or environment variables) say, beside the toolkit, or in the
# system's folders. Turns MEGALITH_CUDA=AUTO into ON or OFF with one line that says why; ON fails if a piece is missing.
set(MEGALITH_OLDEST_CUDA 12.8)
set(MEGALITH_OLDEST_CUDNN 9.8)  # the first that can describe a device; the program refuses those with known bugs
set(missing "")

# Reads `#define NAME 9` of each name from a header into VERSION, joined by dots.
function(megalith_header_version variable header)
  set(version "")
  if(EXISTS "${header}")
    foreach(name IN LISTS ARGN)
      file(STRINGS "${header}" line REGEX "^#define ${name} +[0-9]+" LIMIT_COUNT 1)
      string(REGEX MATCH "[0-9]+" number "${line}")
      list(APPEND version "${number}")
    endforeach()
  endif()
  string(REPLACE ";" "." version "${version}")
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

if(NOT DEFINED CUDAToolkit_ROOT AND NOT DEFINED ENV{CUDAToolkit_ROOT} AND DEFINED ENV{CUDA_HOME})
  set(CUDAToolkit_ROOT "$ENV{CUDA_HOME}")
endif()
find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND OR NOT EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}")
  list(APPEND missing "nvcc ${MEGALITH_OLDEST_CUDA} or newer (CUDAToolkit_ROOT)")
elseif(CUDAToolkit_VERSION VERSION_LESS MEGALITH_OLDEST_CUDA)
  list(APPEND missing "nvcc ${MEGALITH_OLDEST_CUDA} or newer (${CUDAToolkit_NVCC_EXECUTABLE} is ${CUDAToolkit_VERSION})")
elseif(NOT TARGET CUDA::cublasLt OR NOT TARGET CUDA::cudart)
  list(APPEND missing "the toolkit's cublasLt and cudart (CUDAToolkit_ROOT)")
endif()

get_filename_component(toolkit_root "${CUDAToolkit_BIN_DIR}" DIRECTORY)
find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ${toolkit_root} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ${toolkit_root}
             PATH_SUFFIXES lib lib64)
megalith_header_version(cudnn_version "${CUDNN_INCLUDE_DIR}/cudnn_version.h" CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
if(NOT CUDNN_INCLUDE_DIR)
  list(APPEND missing "cuDNN 9's headers (CUDNN_ROOT)")
elseif(cudnn_version VERSION_LESS MEGALITH_OLDEST_CUDNN OR cudnn_version VERSION_GREATER_EQUAL 10)
  list(APPEND missing "cuDNN 9, from ${MEGALITH_OLDEST_CUDNN} on (${CUDNN_INCLUDE_DIR} has ${cudnn_version}; CUDNN_ROOT)")
elseif(NOT CUDNN_LIBRARY)
  list(APPEND missing "cuDNN 9's library (CUDNN_ROOT)")
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${toolkit_root} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${toolkit_root} PATH_SUFFIXES lib lib64)
megalith_header_version(nccl_version "${NCCL_INCLUDE_DIR}/nccl.h" NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  list(APPEND missing "NCCL's header and library (NCCL_ROOT)")
endif()

string(REPLACE ";" ", " missing "${missing}")
if(NOT missing)
  set(MEGALITH_CUDA ON)
  message(STATUS "CUDA backend: on (CUDA ${CUDAToolkit_VERSION}, cuDNN ${cudnn_version}, NCCL ${nccl_version})")
elseif(MEGALITH_CUDA STREQUAL "AUTO")
  set(MEGALITH_CUDA OFF)
  message(STATUS "CUDA backend: off (missing: ${missing})")
else()
  message(FATAL_ERROR "MEGALITH_CUDA=ON, but missing: ${missing}. Install it, say by the variable in brackets where "
                      "it is, or configure with -DMEGALITH_CUDA=OFF")
endif()

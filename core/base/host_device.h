// MEGALITH_HOST_DEVICE: an inline function that CUDA kernels call too.
#pragma once

#ifdef __CUDACC__
#define MEGALITH_HOST_DEVICE __host__ __device__
#else
#define MEGALITH_HOST_DEVICE
#endif

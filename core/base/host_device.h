// MEGALITH_HOST_DEVICE: mark of an inline function that CUDA kernels also call.
#pragma once

#ifdef __CUDACC__
#define MEGALITH_HOST_DEVICE __host__ __device__
#else
#define MEGALITH_HOST_DEVICE
#endif

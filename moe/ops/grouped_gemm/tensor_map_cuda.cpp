#include <cuda_runtime_api.h>

#include "core/device/cuda/driver.h"
#include "core/device/cuda_stream_state.h"
#include "moe/ops/grouped_gemm/tensor_map_cuda.cuh"

namespace megalith::cuda {

const TensorMaps& tensor_maps(CudaStream& stream) {
  std::shared_ptr<const TensorMaps>& maps = stream.state().tensor_maps;
  if (maps == nullptr) maps = std::make_shared<const TensorMaps>();
  return *maps;
}

TensorMaps::TensorMaps() {
  int device = 0, major = 0;
  MEGALITH_CUDA_CHECK(cudaGetDevice(&device));
  MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major == 9) encode_ = driver_function<decltype(encode_)>("cuTensorMapEncodeTiled");
}

CUtensorMap TensorMaps::rows(const Tensor& x, unsigned box_rows) const {
  return map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x.data,
             {.dims = 2,
              .sizes = {static_cast<cuuint64_t>(x.size(1)), static_cast<cuuint64_t>(x.size(0))},
              .strides = {static_cast<cuuint64_t>(x.stride(0)) * 2},
              .box = {64, box_rows}});
}

CUtensorMap TensorMaps::matrices(const Tensor& c, std::int64_t count) const {
  const auto columns = static_cast<cuuint64_t>(c.size(1)), rows = static_cast<cuuint64_t>(c.size(0) / count);
  return map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, c.data,
             {.dims = 3,
              .sizes = {columns, rows, static_cast<cuuint64_t>(count)},
              .strides = {columns * 4, columns * rows * 4},
              .box = {32, 64, 1}});
}

CUtensorMap TensorMaps::map(CUtensorMapDataType type, void* data, const Extent& extent) const {
  constexpr cuuint32_t kSteps[] = {1, 1, 1};
  CUtensorMap result;
  check_driver(encode_(&result, type, extent.dims, data, extent.sizes, extent.strides, extent.box, kSteps,
                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return result;
}

}  // namespace megalith::cuda

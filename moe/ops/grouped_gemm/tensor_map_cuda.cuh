// TMA descriptors (tensor maps) of tensors, for Hopper devices.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/device/cuda_stream.h"
#include "core/tensor/tensor.h"

namespace megalith::cuda {

// Creates TMA descriptors; a stream owns it. All boxes have rows of 128 bytes, with the 128-byte swizzle in shared
// memory. Addresses and strides are multiples of 16 bytes.
class TensorMaps {
 public:
  TensorMaps();
  bool present() const { return encode_ != nullptr; }  // the device is a Hopper

  // Boxes of 64 columns and `box_rows` rows of a bf16 [rows, columns], whose rows may be strided.
  CUtensorMap rows(const Tensor& x, unsigned box_rows) const;
  // Boxes of 32 columns and 64 rows of one of `count` contiguous fp32 matrices, stacked as [count rows, columns].
  CUtensorMap matrices(const Tensor& c, std::int64_t count) const;

 private:
  struct Extent {
    unsigned dims;
    cuuint64_t sizes[3];
    cuuint64_t strides[2];  // bytes, of the dims after the first
    cuuint32_t box[3];
  };
  CUtensorMap map(CUtensorMapDataType type, void* data, const Extent& extent) const;

  decltype(&cuTensorMapEncodeTiled) encode_ = nullptr;  // driver function
};

const TensorMaps& tensor_maps(CudaStream& stream);

}  // namespace megalith::cuda

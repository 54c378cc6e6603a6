#include "core/layers/host_copy.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/device/copy.h"
#include "core/tensor/bf16.h"

namespace megalith {

void upload(Stream& stream, std::span<const float> values, const Tensor& tensor) {
  require(static_cast<std::int64_t>(values.size()) == tensor.numel() && tensor.is_contiguous(), "upload: sizes differ");
  std::vector<bf16> rounded;
  if (tensor.dtype != DType::kFp32) {
    require(tensor.dtype == DType::kBf16, "upload to a tensor that is neither fp32 nor bf16");
    std::transform(values.begin(), values.end(), std::back_inserter(rounded), to_bf16);
  }
  const void* const host = rounded.empty() ? static_cast<const void*>(values.data()) : rounded.data();
  copy_from_host(stream, tensor.data, host, tensor.bytes());
  stream.synchronize();
}

}  // namespace megalith

#include "tests/support/download.h"

#include <algorithm>

#include "core/device/copy.h"
#include "core/tensor/bf16.h"

namespace megalith {

std::vector<float> download(Stream& stream, const Tensor& tensor) {
  require(tensor.is_contiguous(), "download of a strided tensor");
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  if (tensor.dtype == DType::kFp32) {
    copy_to_host(stream, values.data(), tensor.data, tensor.bytes());
    stream.synchronize();
    return values;
  }
  require(tensor.dtype == DType::kBf16, "download of a tensor that is neither fp32 nor bf16");
  std::vector<bf16> rounded(values.size());
  copy_to_host(stream, rounded.data(), tensor.data, tensor.bytes());
  stream.synchronize();
  std::transform(rounded.begin(), rounded.end(), values.begin(), [](bf16 x) { return to_float(x); });
  return values;
}

}  // namespace megalith

#include "core/layers/host_copy.h"

#include <algorithm>

#include "core/device/copy.h"
#include "core/tensor/bf16.h"

namespace megalith {

void upload(Stream& stream, std::span<const float> values, const Tensor& tensor) {
  require(static_cast<std::int64_t>(values.size()) == tensor.numel() && tensor.is_contiguous(), "upload: sizes differ");
  if (tensor.dtype == DType::kFp32) {
    copy_from_host(stream, tensor.data, values.data(), tensor.bytes());
    stream.synchronize();
    return;
  }
  require(tensor.dtype == DType::kBf16, "upload to a tensor that is neither fp32 nor bf16");
  std::vector<bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
  copy_from_host(stream, tensor.data, rounded.data(), tensor.bytes());
  stream.synchronize();
}

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

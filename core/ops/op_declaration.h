// Declaration of an op (see op.h), for op headers. It keeps headers of streams and fields out of kernels: parsing them
// took as long as the rest of a kernel's compilation.
#pragma once

#include <cstddef>

#include "core/device/device.h"
#include "core/tensor/tensor.h"

namespace megalith {

class CudaStream;
class Fields;

}  // namespace megalith

// Declares the op's name and functions; the first line of the op's struct.
#define MEGALITH_OP(Op, name)                  \
  static constexpr const char* kName = (name); \
  friend void fields(const Op& op, Fields& f); \
  friend void compute(const Op& op);           \
  friend void run(CudaStream& stream, const Op& op)
#define MEGALITH_OP_WITH_WORKSPACE(Op, name) \
  MEGALITH_OP(Op, name);                     \
  friend std::size_t workspace_bytes(const Op& op, DeviceType device)

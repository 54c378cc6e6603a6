// What an op's header includes to declare the op (op.h says of what it consists). It keeps streams and lists of fields
// out of kernels: parsing them took as long as the rest of a kernel's compilation.
#pragma once

#include "core/device/device.h"
#include "core/tensor/tensor.h"

namespace megalith {

class CudaStream;
class Fields;

}  // namespace megalith

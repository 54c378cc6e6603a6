// The same as check.h for cuDNN; the message ends with cuDNN's own last error string.
#pragma once

#include <cudnn.h>

#include <source_location>

namespace megalith {

[[noreturn]] void fail_dnn(cudnnStatus_t status, const char* call,
                           std::source_location place = std::source_location::current());

inline void check_dnn(cudnnStatus_t status, const char* call,
                      std::source_location place = std::source_location::current()) {
  if (status != CUDNN_STATUS_SUCCESS) [[unlikely]]
    fail_dnn(status, call, place);
}

}  // namespace megalith

#define MEGALITH_CUDNN_CHECK(call) ::megalith::check_dnn((call), #call)

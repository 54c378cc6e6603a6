// The backends. `plan` computes nothing and owns no memory: it records what the real code path would do.
#pragma once

#include <cstdint>
#include <string_view>

namespace megalith {

enum class DeviceType : std::uint8_t { kCpu, kCuda, kPlan };

constexpr std::string_view name_of(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu: return "cpu";
    case DeviceType::kPlan: return "plan";
    case DeviceType::kCuda: return "cuda";
  }
  return "unknown";
}

// Whether this build has the CUDA backend. The one place in core that asks the preprocessor.
#if MEGALITH_CUDA
inline constexpr bool kCudaBuilt = true;
#else
inline constexpr bool kCudaBuilt = false;
#endif
// Exit code 2 when this build lacks the backend.
void require_built(DeviceType type);
// CUDA where this build has it and a GPU can be used, else the CPU.
DeviceType default_device();

}  // namespace megalith

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

// Whether the CUDA backend is linked (core/device/cuda) or what stands in for it (core/device/no_cuda). Only tests ask.
bool cuda_built();
// Exit code 2 when this build lacks the backend.
void require_built(DeviceType type);
[[noreturn]] void refuse_cuda();  // as a build without CUDA does
// CUDA where this build has it and a GPU can be used, else the CPU.
DeviceType default_device();

}  // namespace megalith

// The backends. `plan` computes nothing and owns no memory: it records what the other backends would do.
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

// Returns whether the CUDA backend (core/device/cuda) is linked, not its stub (core/device/no_cuda). For tests only.
bool cuda_built();
// Fails with exit code 2 if this build lacks the backend.
void require_built(DeviceType type);
[[noreturn]] void refuse_cuda();  // fails as a build without CUDA does
// Returns CUDA if this build has it and a GPU is usable, otherwise the CPU.
DeviceType default_device();

}  // namespace megalith

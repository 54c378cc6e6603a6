// The backends. `plan` computes nothing and owns no memory: it records what the real code path would do.
#pragma once

#include <cstdint>
#include <string_view>

namespace megalith {

enum class DeviceType : std::uint8_t { kCpu, kPlan };

constexpr std::string_view name_of(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "plan"; }

}  // namespace megalith

// Dispatcher that expert rows used, by counts of their group. An unrequested dispatcher would give the same bits.
#pragma once

#include "core/device/device.h"
#include "core/model/moe_config.h"
#include "parallel/comm/communicator.h"

namespace megalith::test {

inline bool went_by(MoeTokenDispatcher way, DeviceType device, const CommunicatorStats& stats) {
  const bool in_parts = way == MoeTokenDispatcher::kAllToAll, gpu = device == DeviceType::kCuda;
  return (stats.pulled > 0) == (way == MoeTokenDispatcher::kFlex) && (stats.padded > 0) == (in_parts && gpu) &&
         (stats.messages > 0) == (in_parts && !gpu);
}

}  // namespace megalith::test

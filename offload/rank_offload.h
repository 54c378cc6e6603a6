// What a rank keeps of activations on the host, and who moves them there and back.
#pragma once

#include "offload/transfer.h"

namespace megalith {

struct RankOffload {
  // `points` has slots. `ctx` and `runner` outlive the object. `poison`: as ActivationTransfer's.
  RankOffload(DeviceType device, OffloadPoints points, const Instruments& instruments, const Context& ctx,
              SegmentRunner& runner, bool poison);

  bool moves_rows() const;  // of experts: the device knows how many are used

  OffloadPoints points;
  MemoryPool pool;
  Arena host;   // of a training step
  Stream out;   // copies to the host
  Stream back;  // and from it
  ActivationTransfer transfer;
};

}  // namespace megalith

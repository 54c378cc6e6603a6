// Offload state of a rank: host memory, streams and the transfer.
#pragma once

#include "offload/transfer.h"

namespace megalith {

struct RankOffload {
  // `points` has slots. `ctx` and `runner` outlive the object. `poison`: see ActivationTransfer::poison().
  RankOffload(DeviceType device, OffloadPoints points, const Instruments& instruments, const Context& ctx,
              SegmentRunner& runner, bool poison);

  bool moves_rows() const;  // true for slots of expert rows, of which the device knows the number in use

  OffloadPoints points;
  MemoryPool pool;
  Arena host;   // of one training step
  Stream out;   // copies to the host
  Stream back;  // copies from the host
  ActivationTransfer transfer;
};

}  // namespace megalith

// Checks of ExchangeRows, as those of collective_cases.h.
#pragma once

#include "parallel/comm/communicator.h"
#include "tests/distributed/collective_rig.h"

namespace megalith::test {

// Checks send and return with other counts in each run of one capture. Some counts are zero, some ranks have no rows,
// one rank gets all rows, or rows exceed the capacity.
void check_exchange_rows(Communicator& world, const CollectiveForm& form);
// The same for GPUs that read each other's memory; skipped on the CPU.
void check_exchange_of_shared_memory(Communicator& world, const CollectiveForm& form);
void check_refused_exchanges(Communicator& world, const CollectiveForm& form);

}  // namespace megalith::test

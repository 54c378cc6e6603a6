// Checks of ExchangeRows, as those of collective_cases.h.
#pragma once

#include "parallel/comm/communicator.h"
#include "tests/distributed/collective_rig.h"

namespace megalith::test {

// There and back, with other counts in each run of one capture: some zero, ranks without rows, all rows to one rank,
// more than there is room for.
void check_exchange_rows(Communicator& world, const CollectiveForm& form);
// The same of GPUs that read each other's memory; on the CPU there are none.
void check_exchange_of_shared_memory(Communicator& world, const CollectiveForm& form);
void check_refused_exchanges(Communicator& world, const CollectiveForm& form);

}  // namespace megalith::test

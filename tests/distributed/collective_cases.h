// Checks of a communicator against a reference that every rank computes for itself, the same for ranks as threads and
// as processes. Every rank of `world` calls them with the same arguments; a difference fails the running GoogleTest
// test. Results are compared bit for bit.
#pragma once

#include "parallel/comm/communicator.h"
#include "tests/distributed/collective_rig.h"

namespace megalith::test {

void check_all_reduce(Communicator& world,
                      const CollectiveForm& form);  // sum and maximum, all dtypes, sizes from 0 to beyond a chunk
void check_reduce_scatter(Communicator& world, const CollectiveForm& form);          // also into in's own part
void check_all_gather(Communicator& world, const CollectiveForm& form);              // also from out's own part
void check_all_to_all(Communicator& world, const CollectiveForm& form);              // equal counts
void check_all_to_all_v(Communicator& world, const CollectiveForm& form);            // counts that differ, some zero
void check_shift(Communicator& world, const CollectiveForm& form);                   // for each shift distance
void check_shift_of_shared_memory(Communicator& world, const CollectiveForm& form);  // one after the other
void check_sum_of_shared_memory(Communicator& world, const CollectiveForm& form);    // in several rounds, added to
void check_gather_of_shared_memory(Communicator& world, const CollectiveForm& form);
void check_messages_to_shared_memory(Communicator& world, const CollectiveForm& form);  // in pairs, in both directions
void check_broadcast(Communicator& world, const CollectiveForm& form);                  // from every root
void check_send_receive(Communicator& world, const CollectiveForm& form);               // around a ring, and one to one
void check_host_calls(Communicator& world, const CollectiveForm&);
void check_split(Communicator& world,
                 const CollectiveForm& form);  // groups of several sizes and orders, one inside another
void check_concurrent_groups(Communicator& world,
                             const CollectiveForm& form);  // two groups on two streams at the same time
void check_refused_calls(Communicator& world, const CollectiveForm& form);  // a rejected call leaves the group usable
void check_stats(Communicator& world, const CollectiveForm& form);

}  // namespace megalith::test

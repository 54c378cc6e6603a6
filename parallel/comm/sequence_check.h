// Check that the ranks of a group made the same calls.
#pragma once

#include <string>

#include "parallel/comm/communicator.h"

namespace megalith {

// Collective over the group, on the host. Returns an error text with the first different call, equal on every rank;
// empty if all calls agree.
std::string difference_of_sequences(Communicator& group);

}  // namespace megalith

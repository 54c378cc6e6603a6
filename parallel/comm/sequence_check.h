// Whether the ranks of a group made the same calls.
#pragma once

#include <string>

#include "parallel/comm/communicator.h"

namespace megalith {

// Collective over the group, on the host. What is wrong if the ranks did not make the same calls so far, the same text
// on every rank, with the first call that differs; else empty.
std::string difference_of_sequences(Communicator& group);

}  // namespace megalith

// Which part of the host is near the process's GPU.
#pragma once

#include <sched.h>

namespace megalith {

// CPUs of the GPU's NUMA node; none where that is not known.
cpu_set_t cpus_of_gpu();

}  // namespace megalith

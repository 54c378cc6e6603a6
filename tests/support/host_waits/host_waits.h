// Counts the calls of CUDA in which the host waits for a GPU, or may wait. These are synchronizations, blocking copies
// (synchronous ones, and asynchronous ones of unpinned memory), allocations and frees. Queries of completion count too,
// since a loop could wait with them. Only the calls of one thread between its begin and end are counted.
//
// The library interposes CUDA's symbols if a program is linked to it first, or started with it in LD_PRELOAD. Symbols
// of the runtime are found by name, those of the driver through cuGetProcAddress and dlsym. Calls of the driver by the
// runtime and by libraries with a static runtime (NCCL, cuBLASLt) are therefore seen too. x86-64 only.
#pragma once

extern "C" {

struct HostWaits {
  long of_runtime;  // calls of cudaStreamSynchronize and the like
  long of_driver;   // cuStreamSynchronize and the like, by whomever
  long questions;   // cudaStreamQuery, cuEventQuery and the like
  long unseen;      // functions of the driver with more forms than kForms
  char first[64];   // the name of the first wait
};

void host_waits_begin();
HostWaits host_waits_end();
}

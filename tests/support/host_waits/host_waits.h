// Counts the calls of CUDA in which the host waits for a GPU, or may: synchronisations, copies that block (all that are
// not asynchronous, and asynchronous ones of memory that is not pinned), allocations and frees; and questions whether
// something is done, with which a loop could wait. Counted are the calls of one thread between its begin and end.
//
// The library stands in front of CUDA's symbols where a program is linked to it first, or started with it in
// LD_PRELOAD: of the runtime's by their names, and of the driver's where cuGetProcAddress and dlsym hand them out. So
// the runtime's own calls of the driver are seen too, and those of libraries that hold a runtime of their own (NCCL,
// cuBLASLt). x86-64 alone.
#pragma once

extern "C" {

struct HostWaits {
  long of_runtime;  // calls of cudaStreamSynchronize and the like
  long of_driver;   // cuStreamSynchronize and the like, by whomever
  long questions;   // cudaStreamQuery, cuEventQuery and the like
  long unseen;      // functions of the driver that were handed out in more forms than there is room for
  char first[64];   // the name of the first wait
};

void host_waits_begin();
HostWaits host_waits_end();
}

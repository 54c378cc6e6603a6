// The one GPU of this process, chosen by index at the start and never changed: streams and pools are made on it. Needs
// no CUDA header.
#pragma once

#include <cstdint>
#include <string>

namespace megalith {

// What a start on a GPU depends on, as the driver and the runtime report it.
struct CudaFacts {
  int index = 0;               // asked for
  int count = 0;               // visible GPUs
  std::string count_error;     // the driver's text if it could not even count
  int driver_version = 0;      // 13000 is 13.0: the newest runtime the driver serves; 0: no driver
  int runtime_version = 0;     // of the library this program is linked to
  int compute_capability = 0;  // of GPU `index`, if there is one; 90 is 9.0
  std::string name;
};
CudaFacts cuda_facts(int index);
// Exit code 2 and one line when there is no GPU, when `index` is beyond the last one, when the driver is older than the
// runtime, or when the GPU is older than compute capability 8.0.
void check(const CudaFacts& facts);

// Why a GPU test cannot run here; empty when GPU 0 can be used.
std::string cuda_unavailable();

// Checks GPU `index` and makes it the process's; exit code 2 as above. A second call with another index is an error.
// Communication over several GPUs runs one process a GPU: index = local rank.
void select_cuda_device(int index);
// Makes the process's GPU (0 when none was selected) current in the calling thread, and returns its index.
int use_cuda_device();
// Of the process's GPU, the same for all processes of the machine: "0000:1B:00.0".
std::string cuda_bus_id();

// Lets an attached profiler (--profile-from-start off, --capture-range cudaProfilerApi) record from here, or stop.
void record_cuda_profile(bool on);

// What a kernel found wrong in its data, where the CPU's would throw: report_fault in core/device/cuda/fault.cuh. One
// per process, in host memory that kernels write. The next synchronize(), or host wait for an event, of any stream
// clears it and calls `raise`, which throws the op's own Error. Until then a kernel must stay in bounds also on bad
// data.
struct CudaFault {
  using Raise = void (*)(const std::int64_t* values);  // a host function, passed to the kernel by value
  unsigned claimed = 0;                                // the first thread to report wins
  unsigned ready = 0;                                  // the rest is written
  Raise raise = nullptr;
  std::int64_t values[4] = {};
};
// raise_cuda_fault throws what a kernel reported, if one did, and clears it.
CudaFault* cuda_fault();
void raise_cuda_fault();

}  // namespace megalith

// The process's GPU, chosen by index at the start and fixed: streams and pools are created on it. Needs no CUDA header.
#pragma once

#include <cstdint>
#include <string>

namespace megalith {

// Facts that a start on a GPU depends on, as the driver and the runtime report them.
struct CudaFacts {
  int index = 0;               // requested index
  int count = 0;               // number of visible GPUs
  std::string count_error;     // the driver's text if counting failed
  int driver_version = 0;      // newest runtime that the driver supports: 13000 is 13.0; 0: no driver
  int runtime_version = 0;     // version of the linked runtime
  int compute_capability = 0;  // GPU `index`'s, if it exists; 90 is 9.0
  std::string name;
};
CudaFacts cuda_facts(int index);
// Fails with exit code 2 if GPU `index` does not exist or is older than compute capability 8.0, or the driver is older
// than the runtime.
void check(const CudaFacts& facts);

// Returns why a GPU test cannot run here; empty if GPU 0 is usable.
std::string cuda_unavailable();

// Checks GPU `index` and makes it the process's GPU; exit code 2 as above. A second call with another index is an
// error. Communication over several GPUs runs one process per GPU: index = local rank.
void select_cuda_device(int index);
// Makes the process's GPU (0 if none was selected) current in the calling thread, and returns its index.
int use_cuda_device();
// Returns the PCI bus id of the process's GPU, equal in all processes of the machine: "0000:1B:00.0".
std::string cuda_bus_id();

// Starts or stops the recording of an attached profiler (--profile-from-start off, --capture-range cudaProfilerApi).
void record_cuda_profile(bool on);

// A kernel's report of wrong data, written by report_fault (core/device/cuda/fault.cuh) where a CPU op would throw.
// Each process has one, in host memory that kernels write. The next synchronize() or host wait of any stream clears the
// fault and calls `raise`, which throws the op's Error. Until then a kernel must stay in bounds.
struct CudaFault {
  using Raise = void (*)(const std::int64_t* values);  // a host function, passed to the kernel by value
  unsigned claimed = 0;                                // the first thread to report wins
  unsigned ready = 0;                                  // the other fields are written
  Raise raise = nullptr;
  std::int64_t values[4] = {};
};
// raise_cuda_fault throws and clears a kernel's report, if there is one.
CudaFault* cuda_fault();
void raise_cuda_fault();

}  // namespace megalith

// Work that tests of the device library enqueue on a CUDA stream. Each is one graph node under capture.
#pragma once

#include <cstdint>
#include <functional>

#include "core/device/cuda_stream.h"

namespace megalith::test {

// CUDA loads a kernel at its first launch, which may wait for running device work. A test that expects two concurrent
// kernels loads them first.
void load_kernels();

// Runs `task` on a thread of the driver, in the stream's order; kept until the process ends, because a graph may run it
// again. It must not call CUDA. Two of them on two streams may wait for one thread: one must not wait for the other.
void enqueue_on_host(CudaStream& stream, std::function<void()> task);

// Spins until *flag (pinned host memory) is at least `value`; gives up after ten seconds, so that a test fails instead
// of hanging.
void enqueue_spin(CudaStream& stream, const int* flag, int value);
// The same, and occupies `multiprocessors` full multiprocessors meanwhile.
void enqueue_hold(CudaStream& stream, const int* flag, int value, int multiprocessors);
// *flag = value, seen by spins on other streams and by the host.
void enqueue_signal(CudaStream& stream, int* flag, int value);
void enqueue_add(CudaStream& stream, int* address, int value);                   // *address += value
void enqueue_copy(CudaStream& stream, int* to, const int* from);                 // *to = *from, by a kernel
void enqueue_nothing(CudaStream& stream);                                        // an empty kernel
void enqueue_fault(CudaStream& stream, std::int64_t got, std::int64_t threads);  // each of the threads reports it
void enqueue_bad_launch(CudaStream& stream);                                     // rejected by the driver
// Allocates device memory, which a capture forbids.
void allocate_and_free();

}  // namespace megalith::test

// A CUDA stream with what kernels and libraries need to enqueue on it; core/device/cuda defines it, and
// core/device/no_cuda in a build without. Needs no CUDA header itself. Non-blocking: it never orders itself against the
// legacy default stream. An op's run(CudaStream&, const Op&) launches on handle() and checks each launch with
// MEGALITH_CUDA_CHECK(cudaGetLastError()) (core/device/cuda/check.h). It neither allocates nor synchronises.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;      // cudaStream_t points to one,
struct CUevent_st;       // cudaEvent_t,
struct CUgraph_st;       // cudaGraph_t,
struct CUgraphExec_st;   // cudaGraphExec_t,
struct cublasLtContext;  // cublasLtHandle_t,
struct cudnnContext;     // cudnnHandle_t

namespace megalith {

struct CudaFault;
struct CudaStreamState;

class CudaStream {
 public:
  CudaStream();  // on the process's device (core/device/cuda_device.h)
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  CUstream_st* handle() const { return stream_; }  // cudaStream_t
  int multiprocessors() const { return multiprocessors_; }
  int device() const { return device_; }
  // Bytes of shared memory: of a multiprocessor, and dynamic ones of a block alone on it.
  static constexpr int kSharedMemoryOfBlock = 2048;  // kept by the runtime, and for what kernels declare themselves
  int shared_memory_of_multiprocessor() const { return shared_memory_of_multiprocessor_; }
  int dynamic_shared_memory_of_block() const { return dynamic_shared_memory_of_block_; }

  // The stream's own library handles; cuDNN's is bound to this stream. Made at first use and kept. That is legal under
  // capture, but a library may then load kernels: run an op once before.
  cublasLtContext* blas_lt();
  cudnnContext* dnn();

  CudaFault* fault() const { return fault_; }

  // For a chain of small kernels, as a step of generation is: they may start while those before them end. A graph that
  // is captured meanwhile stays a chain.
  void let_start_early() { starts_early_ = true; }
  bool starts_early() const { return starts_early_; }

  // For a pass that is run for what libraries set up in it: ops that take long may do that once for each problem, and
  // leave zeros where it is done.
  void only_set_up(bool on) { only_sets_up_ = on; }
  bool only_sets_up() const { return only_sets_up_; }

  CudaStreamState& state() { return *state_; }

  // Between device memory, or device and host memory. Pageable host memory makes the host wait; pinned (HostArena) not.
  void copy(void* to, const void* from, std::size_t bytes);
  void fill(void* to, std::uint8_t value, std::size_t bytes);

  // A range in the profiler's picture; a call through a null pointer check when no profiler is attached.
  class Range {
   public:
    explicit Range(const char* name);
    ~Range();
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
  };

 private:
  friend class Stream;

  void synchronize();

  CUstream_st* stream_ = nullptr;
  int device_ = 0;
  int multiprocessors_ = 0;
  int shared_memory_of_multiprocessor_ = 0;
  int dynamic_shared_memory_of_block_ = 0;
  CudaFault* fault_ = nullptr;
  bool starts_early_ = false;
  bool only_sets_up_ = false;
  cublasLtContext* blas_lt_ = nullptr;
  cudnnContext* dnn_ = nullptr;
  CudaStreamState* state_ = nullptr;  // owned; a smart pointer's header would double what a kernel's source parses
};

// The CUDA form of an Event's point, made at its first record. Needs no CUDA header.
class CudaEvent {
 public:
  explicit CudaEvent(bool timed = false);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // External, under capture: nodes that fire it, or wait for it, at each replay.
  void record(CudaStream& stream, bool external = false);
  void wait(CudaStream& stream, bool external = false);  // does nothing if never recorded
  void wait_on_host();                                   // sleeps instead of spinning; throws a kernel's fault
  double seconds_since(const CudaEvent& earlier) const;  // both timed and reached

 private:
  [[maybe_unused]] CUevent_st* event_ = nullptr;  // without CUDA
};

}  // namespace megalith

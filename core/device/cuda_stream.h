// A CUDA stream and the handles with which kernels and libraries enqueue on it. Defined in core/device/cuda, or in
// core/device/no_cuda for a build without CUDA. Needs no CUDA header. The stream is non-blocking: no order against the
// legacy default stream. An op's run(CudaStream&, const Op&) launches on handle() and checks each launch with
// MEGALITH_CUDA_CHECK(cudaGetLastError()) (core/device/cuda/check.h). It neither allocates nor synchronizes.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;      // target of cudaStream_t
struct CUevent_st;       // target of cudaEvent_t
struct CUgraph_st;       // target of cudaGraph_t
struct CUgraphExec_st;   // target of cudaGraphExec_t
struct cublasLtContext;  // target of cublasLtHandle_t
struct cudnnContext;     // target of cudnnHandle_t

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
  // Bytes of shared memory: of a multiprocessor, and dynamic ones of a block that runs alone on it.
  static constexpr int kSharedMemoryOfBlock = 2048;  // reserved by the runtime, and static shared memory of kernels
  int shared_memory_of_multiprocessor() const { return shared_memory_of_multiprocessor_; }
  int dynamic_shared_memory_of_block() const { return dynamic_shared_memory_of_block_; }

  // Library handles of this stream, created at first use and kept; cuDNN's is bound to the stream. Creation under
  // capture is legal, but a library may load kernels then: run the op once ahead of a capture.
  cublasLtContext* blas_lt();
  cudnnContext* dnn();

  CudaFault* fault() const { return fault_; }

  // Lets kernels start while their predecessors end, for chains of small kernels such as a generation step. A graph
  // that is captured meanwhile stays a chain.
  void let_start_early() { starts_early_ = true; }
  bool starts_early() const { return starts_early_; }

  // For a pass that only sets up libraries: slow ops may run once for each problem, and write zeros afterwards.
  void only_set_up(bool on) { only_sets_up_ = on; }
  bool only_sets_up() const { return only_sets_up_; }

  CudaStreamState& state() { return *state_; }

  // Copies within device memory, or between device and host. Pageable host memory blocks the host; pinned does not.
  void copy(void* to, const void* from, std::size_t bytes);
  void fill(void* to, std::uint8_t value, std::size_t bytes);

  // A range in the profiler's timeline. Without a profiler it costs a call and a null check.
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
  CudaStreamState* state_ = nullptr;  // owned; <memory> would double what a kernel's source parses
};

// The CUDA form of an Event's point, created at its first record. Needs no CUDA header.
class CudaEvent {
 public:
  explicit CudaEvent(bool timed = false);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // `external`, under capture: nodes that record or wait for the event at each replay.
  void record(CudaStream& stream, bool external = false);
  void wait(CudaStream& stream, bool external = false);  // does nothing if never recorded
  void wait_on_host();                                   // sleeps instead of spinning; throws a kernel's report
  double seconds_since(const CudaEvent& earlier) const;  // both timed and reached

 private:
  [[maybe_unused]] CUevent_st* event_ = nullptr;  // unused without CUDA
};

}  // namespace megalith

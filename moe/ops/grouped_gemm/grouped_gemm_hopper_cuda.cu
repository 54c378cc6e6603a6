// Tensor maps, choice of kernels and launches of the grouped GEMMs on Hopper.
#include "moe/ops/grouped_gemm/grouped_gemm_hopper_cuda.h"

#include "core/ops/cuda_launch.cuh"
#include "moe/ops/grouped_gemm/grouped_gemm_hopper_mainloop.cuh"
#include "moe/ops/grouped_gemm/grouped_gemm_hopper_wgrad.cuh"
#include "moe/ops/grouped_gemm/tensor_map_cuda.cuh"

namespace megalith::cuda {

namespace {

using namespace hopper;

// True if the build has kernel code for this device. Kernels with an empty body use few registers; the others use all
// registers of a launch. All kernels are in one file, so one kernel represents all.
bool has_code() {
  static const int registers = [] {
    cudaFuncAttributes attributes{};
    MEGALITH_CUDA_CHECK(
        cudaFuncGetAttributes(&attributes, grouped_gemm_wgrad_kernel<Cooperative, false, false, float>));
    return attributes.numRegs;
  }();
  return registers > launch_registers(kWgradThreads) / 2;
}

// bf16 with 16-byte aligned rows, and fewer than 2^31 rows and columns.
bool suits(const Tensor& x) {
  return x.dtype == DType::kBf16 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.size(0) > 0 &&
         x.size(0) < kMaxIndex && x.size(1) < kMaxIndex && x.size(1) % 8 == 0 && x.stride(0) % 8 == 0;
}
bool suits_if_present(const Tensor& x) { return !x || suits(x); }

bool suits(const TensorMaps& maps, const Tensor& offsets, std::int64_t depth) {
  return maps.present() && has_code() && offsets.size(0) - 1 <= kMaxExperts && offsets.size(0) > 1 &&
         depth % kBlockK == 0 && depth > 0;
}
// Gathering threads keep the offset of a row in 32 bits, in units of 16 bytes.
bool can_gather(const Tensor& x) { return x.size(0) * x.stride(0) / 8 < kMaxIndex; }

// Counter of the tile scheduler in the op's workspace; zero at kernel start.
int* tile_counter(CudaStream& stream, const Tensor& workspace) {
  stream.fill(workspace.data, 0, sizeof(int));
  return workspace.as<int>();
}

template <class Traits, auto kKernel>
void launch_m_grouped(CudaStream& stream, const MGroupedArguments& arguments) {
  constexpr auto kSharedBytes = sizeof(MGroupedSharedStorage<Traits>);
  static_assert(kSharedBytes <= kMaxSharedBytes);
  allow_shared_memory<kKernel>(kSharedBytes);
  const auto blocks = static_cast<unsigned>(stream.multiprocessors());
  launch_kernel(stream, {blocks, Traits::kThreads, kSharedBytes}, kKernel, arguments);
}

// Operands of an M-grouped GEMM: a, optionally gathered, and one or two matrices of experts. `capacity`: rows of c.
struct Operands {
  const Tensor &a, &index, &offsets, &b, &b2;
  std::int64_t capacity;
  bool k_major;  // b is [E n, k]
};

MGroupedArguments arguments_of(CudaStream& stream, const TensorMaps& maps, const Operands& of) {
  const std::int64_t experts = of.offsets.size(0) - 1, rows = of.b.size(0) / experts, columns = of.b.size(1);
  const auto matrix = [&](const Tensor& b) { return maps.rows(b, of.k_major ? 128 : 64); };
  MGroupedArguments p{};
  p.b = matrix(of.b);
  p.b2 = of.b2 ? matrix(of.b2) : p.b;
  p.a = of.index ? p.b : maps.rows(of.a, kBlockM);
  p.experts = {of.offsets.as<const int>(), static_cast<int>(experts), static_cast<int>(of.capacity)};
  p.index = of.index.as<const int>();
  p.a_rows = of.a.as<const Bf16>();
  p.a_stride = of.a.stride(0);
  p.columns = static_cast<int>(of.k_major ? rows : columns);
  p.depth = static_cast<int>(of.k_major ? columns : rows);
  p.pair = of.b2 ? 1 : 0;
  p.limits = gather_limits(stream, of.a);
  return p;
}

bool takes(const TensorMaps& maps, const Operands& of) {
  if (of.offsets.size(0) < 2 || of.b.size(0) == 0) return false;
  const std::int64_t rows = of.b.size(0) / (of.offsets.size(0) - 1);
  const std::int64_t depth = of.k_major ? of.b.size(1) : rows, columns = of.k_major ? rows : of.b.size(1);
  return suits(maps, of.offsets, depth) && columns % 8 == 0 && columns > 0 && suits(of.a) && suits(of.b) &&
         suits_if_present(of.b2) && (!of.index || can_gather(of.a));
}

template <class Schedule, bool kGather, bool kTransposed, class C>
void launch_wgrad(CudaStream& stream, const WgradArguments& arguments) {
  constexpr auto kKernel = grouped_gemm_wgrad_kernel<Schedule, kGather, kTransposed, C>;
  allow_shared_memory<kKernel>(sizeof(WgradSharedStorage<Schedule>));
  const auto blocks = static_cast<unsigned>(stream.multiprocessors());
  launch_kernel(stream, {blocks, kWgradThreads, sizeof(WgradSharedStorage<Schedule>)}, kKernel, arguments);
}

}  // namespace

bool run_hopper(CudaStream& stream, const GroupedGemm& op) {
  const TensorMaps& maps = tensor_maps(stream);
  const Operands operands{op.a, op.index, op.offsets, op.b, op.b2, op.c.size(0), op.transpose_b};
  if (!takes(maps, operands) || !suits(op.c)) return false;
  MGroupedArguments p = arguments_of(stream, maps, operands);
  p.tile_counter = tile_counter(stream, op.workspace);
  p.c = op.c.as<Bf16>();
  p.c_stride = op.c.stride(0);
  Variants(bool{op.index}, op.transpose_b).visit([&](auto gathers, auto k_major) {
    using Traits = MGroupedTraits<gathers(), k_major() ? Major::kK : Major::kMn, Epilogue::kStore>;
    launch_m_grouped<Traits, grouped_gemm_kernel<Traits>>(stream, p);
  });
  return true;
}

bool run_hopper(CudaStream& stream, const GroupedGemmSwiglu& op) {
  const TensorMaps& maps = tensor_maps(stream);
  const Operands operands{op.a, op.index, op.offsets, op.gate, op.up, op.y.size(0), true};
  if (!takes(maps, operands) || !suits(op.h) || !suits(op.y)) return false;
  MGroupedArguments p = arguments_of(stream, maps, operands);
  p.tile_counter = tile_counter(stream, op.workspace);
  p.c = op.h.as<Bf16>();
  p.y = op.y.as<Bf16>();
  p.row_weight = op.row_weight.as<const float>();
  Variants(bool{op.index}).visit([&](auto gathers) {
    using Traits = MGroupedTraits<gathers(), Major::kK, Epilogue::kSwiglu>;
    launch_m_grouped<Traits, grouped_gemm_swiglu_kernel<Traits>>(stream, p);
  });
  return true;
}

bool run_hopper(CudaStream& stream, const GroupedGemmSwigluBackward& op) {
  const TensorMaps& maps = tensor_maps(stream);
  const Tensor no_pair;
  const Operands operands{op.dy, op.index, op.offsets, op.b, no_pair, op.y.size(0), false};
  if (!takes(maps, operands) || !suits(op.h) || !suits(op.dh) || !suits(op.y)) return false;
  MGroupedArguments p = arguments_of(stream, maps, operands);
  p.tile_counter = tile_counter(stream, op.workspace);
  p.h = op.h.as<const Bf16>();
  p.c = op.dh.as<Bf16>();
  p.y = op.y.as<Bf16>();
  p.row_weight = op.row_weight.as<const float>();
  p.partial = op.d_row_weight_partial.as<float>();
  Variants(bool{op.index}).visit([&](auto gathers) {
    using Traits = MGroupedTraits<gathers(), Major::kMn, Epilogue::kSwigluBackward>;
    launch_m_grouped<Traits, grouped_gemm_swiglu_backward_kernel<Traits>>(stream, p);
  });
  return true;
}

bool run_hopper(CudaStream& stream, const GroupedGemmWgrad& op) {
  const TensorMaps& maps = tensor_maps(stream);
  const std::int64_t experts = op.offsets.size(0) - 1;
  if (!suits(maps, op.offsets, kBlockK) || !suits(op.a) || !suits(op.b) || op.c.numel() == 0) return false;
  const std::int64_t m = op.c.size(0) / experts, n = op.c.size(1);
  const auto aligned = [](const Tensor& c) { return reinterpret_cast<std::uintptr_t>(c.data) % 16 == 0; };
  if (m % 8 != 0 || n % 8 != 0 || !aligned(op.c) || (op.c2 && !aligned(op.c2))) return false;
  // Only the kernel's first operand may be gathered; if b is gathered, C is computed transposed.
  const bool transposed = op.b_index.present(), gathers = transposed || op.a_index;
  const Tensor &first = transposed ? op.b : op.a, &second = transposed ? op.a : op.b;
  if (gathers && !can_gather(first)) return false;
  WgradArguments p{};
  p.tile_counter = tile_counter(stream, op.workspace);
  p.b = maps.rows(second, kBlockK);
  p.a = gathers ? p.b : maps.rows(first, kBlockK);
  if (op.c.dtype == DType::kFp32) {
    p.c_map = maps.matrices(op.c, experts);
    p.c2_map = op.c2 ? maps.matrices(op.c2, experts) : p.c_map;
  }
  p.experts = {op.offsets.as<const int>(), static_cast<int>(experts), static_cast<int>(second.size(0))};
  p.index = (transposed ? op.b_index : op.a_index).as<const int>();
  p.a_rows = first.as<const Bf16>();
  p.a_stride = first.stride(0);
  p.c = op.c.data;
  p.c2 = op.c2.data;
  p.adds = op.accumulate;
  p.a_columns = static_cast<int>(transposed ? n : m);
  p.b_columns = static_cast<int>(transposed ? m : n);
  p.pair = op.c2 ? 1 : 0;
  p.limits = gather_limits(stream, first);
  // Measured: PingPong is faster up to 1024 rows per expert if gathered and 2048 if not; Cooperative at twice these.
  const std::int64_t few = gathers ? 1536 : 3072;
  const bool ping_pong = op.c.dtype == DType::kFp32 && second.size(0) <= few * experts;
  Variants(ping_pong, gathers, transposed).visit([&](auto is_ping_pong, auto gather, auto transpose) {
    visit_float(op.c.dtype, [&](auto type) {
      using C = std::conditional_t<std::is_same_v<decltype(type), float>, float, Bf16>;
      using Schedule = std::conditional_t<is_ping_pong() && std::is_same_v<C, float>, PingPong, Cooperative>;
      if constexpr (gather() || !transpose()) launch_wgrad<Schedule, gather(), transpose(), C>(stream, p);
    });
  });
  return true;
}

}  // namespace megalith::cuda

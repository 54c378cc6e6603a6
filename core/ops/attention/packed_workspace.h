// Workspace of bf16 attention of packed documents on CUDA. Byte offsets from its start, which is 256-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ops/attention/attention.h"

namespace megalith {

// Tables of C documents that cuDNN reads: lengths, and the documents' first elements in the tensors of a pass.
struct PackedTables {
  static constexpr std::int64_t kTensors = 9;

  std::int64_t entries;  // of a table of first elements, [C + 1] int64, padded to 16 bytes
  std::int64_t query_lengths = 0, key_lengths, first_elements, bytes;

  explicit PackedTables(std::int64_t capacity) : entries((capacity + 2) / 2 * 2) {
    const std::int64_t lengths = (capacity + 3) / 4 * 4 * static_cast<std::int64_t>(sizeof(std::int32_t));
    key_lengths = lengths;
    first_elements = 2 * lengths;
    bytes = first_elements + kTensors * entries * static_cast<std::int64_t>(sizeof(std::int64_t));
    bytes = (bytes + 255) / 256 * 256;
  }
  static PackedTables of(const DocumentRows& documents) { return PackedTables(documents.begin.numel()); }
};

// Tensors are dense. A copy of q is only there if q is not dense, tensors of all query heads if key heads are fewer.
struct PackedBackwardWorkspace {
  PackedTables tables;
  std::int64_t q;                   // [T, N, D] bf16
  std::int64_t dq_sum;              // [T, N, D] fp32
  std::int64_t dq;                  // [T, N, D] bf16
  std::int64_t dk, dv;              // [U, K, D] bf16
  std::int64_t dk_heads, dv_heads;  // [U, N, D] bf16
  std::int64_t plan, bytes;         // the plan's own, to the end

  explicit PackedBackwardWorkspace(const AttentionBackward& op) : tables(PackedTables::of(op.query_documents)) {
    std::int64_t at = tables.bytes;
    const auto take = [&at](std::int64_t elements, std::int64_t size) {
      const std::int64_t begin = at;
      at += (elements * size + 255) / 256 * 256;
      return begin;
    };
    constexpr std::int64_t kBf16 = 2, kFp32 = 4;
    const bool is_grouped = op.q.size(2) != op.k.size(2);
    const std::int64_t heads = is_grouped ? op.k.size(1) * op.q.size(2) * op.q.size(3) : 0;
    q = take(op.q.is_contiguous() ? 0 : op.q.numel(), kBf16);
    dq_sum = take(op.q.numel(), kFp32);
    dq = take(op.q.numel(), kBf16);
    dk = take(op.k.numel(), kBf16);
    dv = take(op.k.numel(), kBf16);
    dk_heads = take(heads, kBf16);
    dv_heads = take(heads, kBf16);
    plan = at;
    // Measured with cuDNN 9.19: 512 bytes of descriptors a document.
    bytes = at + (std::int64_t{64} << 10) + 2048 * op.query_documents.begin.numel();
  }
  // All bf16 gradients as one tensor.
  Tensor gradients(std::byte* workspace) const {
    return Tensor(workspace + dq, DType::kBf16, {(plan - dq) / static_cast<std::int64_t>(size_of(DType::kBf16))});
  }
};

}  // namespace megalith

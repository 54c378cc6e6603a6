// Attention, causal or over all keys, as cuDNN operation graphs through the backend C API. cuDNN's fused engines match
// the graph against patterns. Operations, their order, virtual tensors and even backward's multiplication by one are
// therefore part of the interface. (The native SDPA operations are no alternative: before cuDNN 9.21 their forward has
// no causal mask, and their backward is never accepted.) B samples, N query heads, K key/value heads, S tokens, U keys,
// D head dim; bf16 with fp32 sums.
// Packed documents are the samples of a graph with ragged tensors. A ragged tensor has the document's first element
// from a table of offsets on the device, and its rows from a table of lengths. With cuDNN 9.19, offsets of backward's
// scratch are not its own: those of kDkHeads and kDvHeads are those of dk and dv times N / K, so that their strides are
// too, and the accumulating form is right only if q, dq and kDqSum have equal strides (otherwise it writes out of
// bounds).
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/files/handle.h"
#include "core/device/cuda/library_check.h"

namespace megalith {

static_assert(CUDNN_VERSION >= 90800, "cuDNN older than 9.8 has no device property descriptor");

// A backend descriptor: created, given attributes, finalized, then immutable.
class DnnDescriptor {
 public:
  explicit DnnDescriptor(cudnnBackendDescriptorType_t type);

  cudnnBackendDescriptor_t get() const { return owned_.get(); }
  template <class T>
  DnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const T> values) {
    MEGALITH_CUDNN_CHECK(
        cudnnBackendSetAttribute(get(), name, type, static_cast<std::int64_t>(values.size()), values.data()));
    return *this;
  }
  template <class T>
  DnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    return set(name, type, std::span<const T>(&value, 1));
  }
  DnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value);
  }
  DnnDescriptor& finalize();
  std::int64_t get_int64(cudnnBackendAttributeName_t name) const;
  // Returns at most `most` descriptors of a list; cuDNN may announce more than it fills.
  std::vector<DnnDescriptor> get_list(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                      std::int64_t most) const;

 private:
  static void destroy(cudnnBackendDescriptor_t descriptor) { cudnnBackendDestroyDescriptor(descriptor); }
  Handle<cudnnBackendDescriptor_t, &destroy> owned_;
};

// Values bound at each execution: device addresses, 16-byte aligned, and fp32 numbers on the host, read when the plan
// is executed or captured.
enum class AttentionUid : std::uint8_t {
  kQ,
  kK,
  kV,
  kOut,
  kLse,
  kDOut,
  kDq,
  kDk,
  kDv,
  kDelta,  // scratch, fp32 [B, N, S]
  kDqSum,  // scratch of the accumulating form, fp32 [B, N, S, D]; of packed documents with the strides of dq
  // Packed documents only:
  kDkHeads,  // scratch if K < N, bf16, dk of each query head
  kDvHeads,
  kQueryLengths,  // int32 [C]
  kKeyLengths,
  kQOffsets,  // int64 [C + 1]: first elements of the documents in q, and of those up to kDv in this order
  kDvOffsets = kQOffsets + kDv,
  // Numbers on the host:
  kScale,
  kLowest,
  kOne,
  kWindow,
  kCount
};
constexpr AttentionUid offsets_of(AttentionUid uid) {
  if (uid == AttentionUid::kDelta) uid = AttentionUid::kLse;
  return static_cast<AttentionUid>(static_cast<int>(AttentionUid::kQOffsets) + static_cast<int>(uid));
}
inline constexpr int kOffsetTables = static_cast<int>(AttentionUid::kDv) + 1;

enum class AttentionPass : std::uint8_t {
  kForward,
  kBackwardAccumulating,  // dq is summed in kDqSum by atomics: its last bits vary from run to run
  kBackwardDirect         // dq is written once, from dS materialized in the workspace
};

struct HeadStrides {
  std::int64_t sample = 0, head = 0, token = 0;  // in elements; D is contiguous
  auto operator<=>(const HeadStrides&) const = default;
};

// Key of a plan.
struct AttentionProblem {
  AttentionPass pass = AttentionPass::kForward;
  std::int64_t samples = 0, tokens = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0;
  HeadStrides q, k, v, out;
  HeadStrides d_out, dq, dk, dv;  // backward
  bool causal = true;             // keys = tokens
  std::int64_t window = 0;
  // Packed documents: samples is their capacity, tokens and keys are the longest length.
  std::int64_t rows = 0, key_rows = 0;  // of the tensors; 0: not packed

  bool is_packed() const { return rows > 0; }
  auto operator<=>(const AttentionProblem&) const = default;
};
std::string to_string(const AttentionProblem& problem);

// A finalized operation graph with its descriptors.
struct AttentionGraph {
  explicit AttentionGraph(const AttentionProblem& problem);

  cudnnBackendDescriptor_t get() const { return descriptors.back().get(); }

  std::vector<DnnDescriptor> descriptors;
  std::vector<std::int64_t> uids;  // uids of the tensors to bind
};

// Returns engines for the graph on a device, best guess first; needs no GPU if the properties came from JSON.
std::vector<DnnDescriptor> engine_configs(const AttentionGraph& graph, const DnnDescriptor& device_properties);

}  // namespace megalith

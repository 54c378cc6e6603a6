// Table of cuBLASLt's algorithms by GEMM signature, as data: checkpoints and a file on disk keep it, and rank 0 sends
// it to the others. Holds no CUDA type, so that every build can read and write it; core/ops/gemm/gemm_algorithms_cuda.h
// fills it.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/gemm/gemm.h"

namespace megalith {

enum class GemmGelu : std::uint8_t { kNone, kForward, kBackward };

// Key of the choice. Strides are those of the rows, in elements.
struct GemmSignature {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  std::int32_t alignment_a = 16, alignment_b = 16, alignment_c = 16;  // bytes, at most 16
  DType input = DType::kBf16;
  DType output = DType::kBf16;
  bool transpose_a = false, transpose_b = false;
  bool bias = false;  // fused into the GEMM: only a 16-byte aligned one of c's dtype
  bool accumulate = false;
  GemmGelu gelu = GemmGelu::kNone;  // fused into the GEMM: only bf16 in full and aligned packs of 16 bytes

  auto operator<=>(const GemmSignature&) const = default;
};

// Fails if rows overlap (a row stride below the number of columns).
GemmSignature signature_of(const Gemm& op);
// Formats as "bf16 nt m2304 n65536 k768 lda768 ldb768 ldc2304 align16/16/16 out bf16 bias": one line, never parsed.
std::string to_string(const GemmSignature& signature);

using GemmAlgorithm = std::array<std::uint64_t, 8>;  // bytes of a cublasLtMatmulAlgo_t

enum class GemmChoice : std::uint8_t {
  kFirst,     // cuBLASLt's first answer: depends on signature, device and version alone; --deterministic-mode
  kMeasured,  // the fastest answer on this device; the first one until measured
};

class GemmAlgorithms {
 public:
  // `environment` is device and library version: an algorithm of another environment is never used.
  GemmAlgorithms(GemmChoice choice, std::string environment) : choice_(choice), environment_(std::move(environment)) {}

  GemmChoice choice() const { return choice_; }
  const std::string& environment() const { return environment_; }

  // Returns null for an unknown signature.
  const GemmAlgorithm* find(const GemmSignature& signature);
  // Adds the first answer, unless one was measured.
  const GemmAlgorithm& add_first(const GemmSignature& signature, const GemmAlgorithm& algorithm);
  // Returns whether the library has no algorithm.
  bool is_unanswered(const GemmSignature& signature) const { return unanswered_.contains(signature); }
  void add_unanswered(const GemmSignature& signature) { unanswered_.insert(signature); }
  void add_measured(const GemmSignature& signature, const GemmAlgorithm& algorithm);
  // Returns signatures that are seen but not measured, in an order equal on all ranks. Empty under kFirst.
  std::vector<GemmSignature> pending() const;

  // Returns "environment | signature" -> 128 hexadecimal digits, for entries measured or loaded for this environment.
  std::map<std::string, std::string> entries() const;
  // Loads entries of this environment, overriding measured ones, and returns their number; ignores the others. A
  // damaged value is an error (exit code 4) with `source`. Loads nothing under kFirst.
  std::int64_t load(const std::map<std::string, std::string>& entries, std::string_view source);
  // Increases if another algorithm may answer: a captured GEMM keeps its old one.
  std::uint64_t version() const { return version_; }

 private:
  struct Entry {
    GemmAlgorithm algorithm{};
    bool measured = false;
  };

  std::string key(const GemmSignature& signature) const { return environment_ + " | " + to_string(signature); }

  GemmChoice choice_;
  std::string environment_;
  std::uint64_t version_ = 0;
  std::map<GemmSignature, Entry> entries_;
  std::set<GemmSignature> unanswered_;
  std::map<std::string, GemmAlgorithm> loaded_;  // by key; includes unseen signatures
};

}  // namespace megalith

// Which of cuBLASLt's algorithms multiplies a GEMM of given sizes, as data: the table that a checkpoint and a file on
// disk keep and that rank 0 sends to the others. Holds no CUDA type, so that every build can read and write it;
// core/ops/gemm/gemm_algorithms_cuda.h fills it.
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

// All that the choice may depend on. Strides are those of the rows, in elements.
struct GemmSignature {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  std::int32_t alignment_a = 16, alignment_b = 16, alignment_c = 16;  // of the addresses, in bytes, at most 16
  DType input = DType::kBf16;
  DType output = DType::kBf16;
  bool transpose_a = false, transpose_b = false;
  bool bias = false;  // added by the GEMM itself: only a 16-byte aligned one of c's dtype
  bool accumulate = false;
  GemmGelu gelu = GemmGelu::kNone;  // applied by the GEMM itself: only in bf16, to whole and aligned packs of 16 bytes

  auto operator<=>(const GemmSignature&) const = default;
};

// Fails if rows overlap (a row stride below the number of columns).
GemmSignature signature_of(const Gemm& op);
// "bf16 nt m2304 n65536 k768 lda768 ldb768 ldc2304 align16/16/16 out bf16 bias": one line, parsed nowhere.
std::string to_string(const GemmSignature& signature);

using GemmAlgorithm = std::array<std::uint64_t, 8>;  // the bytes of a cublasLtMatmulAlgo_t

enum class GemmChoice : std::uint8_t {
  kFirst,     // cuBLASLt's first answer: a function of signature, device and version alone; --deterministic-mode
  kMeasured,  // the fastest of its answers on this device; its first one until it was measured
};

class GemmAlgorithms {
 public:
  // `environment` names device and library version: an algorithm of another environment is never used.
  GemmAlgorithms(GemmChoice choice, std::string environment) : choice_(choice), environment_(std::move(environment)) {}

  GemmChoice choice() const { return choice_; }
  const std::string& environment() const { return environment_; }

  // Null if the signature was never seen.
  const GemmAlgorithm* find(const GemmSignature& signature);
  // The first answer, as long as nothing was measured.
  const GemmAlgorithm& add_first(const GemmSignature& signature, const GemmAlgorithm& algorithm);
  // What the library has no algorithm for.
  bool is_unanswered(const GemmSignature& signature) const { return unanswered_.contains(signature); }
  void add_unanswered(const GemmSignature& signature) { unanswered_.insert(signature); }
  void add_measured(const GemmSignature& signature, const GemmAlgorithm& algorithm);
  // Seen and not measured, in an order that is the same on every rank. Empty under kFirst.
  std::vector<GemmSignature> pending() const;

  // "environment | signature" -> 128 hexadecimal digits, of all that was measured here or loaded for this environment.
  std::map<std::string, std::string> entries() const;
  // Takes over what belongs to this environment, over what was measured, and returns how many entries that were; the
  // others are left out. A damaged value is an error (exit code 4) that names `source`. Under kFirst nothing is taken.
  std::int64_t load(const std::map<std::string, std::string>& entries, std::string_view source);
  // Grows where another algorithm than before may answer: a captured GEMM keeps the old one.
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
  std::map<std::string, GemmAlgorithm> loaded_;  // by key; for signatures not seen yet, too
};

}  // namespace megalith

#include "core/ops/gemm/gemm_algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace megalith {

namespace {

constexpr std::int32_t kMaxAlignment = 16;  // no kernel requires more, and more would only split the table
constexpr std::size_t kDigits = 16;         // hexadecimal digits of one 64-bit word

// Returns a matrix's row stride. A single row's is arbitrary, so that it becomes the smallest legal one.
std::int64_t row_stride(const Tensor& x, std::string_view name) {
  if (x.size(0) <= 1) return std::max<std::int64_t>(x.size(1), 1);
  if (x.stride(0) < x.size(1)) {
    fail({.subject = std::string(name),
          .expected = fmt::format("a row stride of at least {}", x.size(1)),
          .got = fmt::format("{}", x.stride(0))});
  }
  return std::max<std::int64_t>(x.stride(0), 1);
}

std::int32_t alignment(const Tensor& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data) | static_cast<std::uintptr_t>(kMaxAlignment);
  return static_cast<std::int32_t>(address & (~address + 1));
}

GemmGelu fused_gelu(const Gemm& op, const GemmSignature& s) {
  const Tensor& other = op.pre_activation ? op.pre_activation : op.gelu_input;
  if (!other || s.m == 0 || s.n == 0 || s.k == 0) return GemmGelu::kNone;
  const bool packs = s.n % 8 == 0 && s.alignment_c == kMaxAlignment && alignment(other) == kMaxAlignment;
  const bool narrow = s.input == DType::kBf16 && s.output == DType::kBf16;
  if (!packs || !narrow || (op.bias && !s.bias)) return GemmGelu::kNone;
  return op.pre_activation ? GemmGelu::kForward : GemmGelu::kBackward;
}

std::string_view suffix_of(GemmGelu gelu) {
  constexpr std::array<std::string_view, 3> kSuffixes = {"", " gelu", " dgelu"};
  return kSuffixes[static_cast<std::size_t>(gelu)];
}

std::optional<GemmAlgorithm> parse(std::string_view digits) {
  GemmAlgorithm algorithm{};
  if (digits.size() != kDigits * algorithm.size()) return std::nullopt;
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    const char* begin = digits.data() + i * kDigits;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, algorithm[i], 16);
    if (error != std::errc{} || end != begin + kDigits) return std::nullopt;
  }
  return algorithm;
}

std::string format(const GemmAlgorithm& algorithm) {
  std::string digits;
  for (const std::uint64_t word : algorithm) digits += fmt::format("{:016x}", word);
  return digits;
}

}  // namespace

GemmSignature signature_of(const Gemm& op) {
  GemmSignature s{.m = op.c.size(0),
                  .n = op.c.size(1),
                  .k = op.transpose_a ? op.a.size(0) : op.a.size(1),
                  .stride_a = row_stride(op.a, "op.a"),
                  .stride_b = row_stride(op.b, "op.b"),
                  .stride_c = row_stride(op.c, "op.c"),
                  .alignment_a = alignment(op.a),
                  .alignment_b = alignment(op.b),
                  .alignment_c = alignment(op.c),
                  .input = op.a.dtype,
                  .output = op.c.dtype,
                  .transpose_a = op.transpose_a,
                  .transpose_b = op.transpose_b,
                  .bias = op.bias.present() && op.bias.dtype == op.c.dtype && alignment(op.bias) == kMaxAlignment,
                  .accumulate = op.accumulate};
  s.gelu = fused_gelu(op, s);
  return s;
}

std::string to_string(const GemmSignature& s) {
  return fmt::format("{} {}{} m{} n{} k{} lda{} ldb{} ldc{} align{}/{}/{} out {}{}{}{}", name_of(s.input),
                     s.transpose_a ? 't' : 'n', s.transpose_b ? 't' : 'n', s.m, s.n, s.k, s.stride_a, s.stride_b,
                     s.stride_c, s.alignment_a, s.alignment_b, s.alignment_c, name_of(s.output), s.bias ? " bias" : "",
                     s.accumulate ? " accumulate" : "", suffix_of(s.gelu));
}

const GemmAlgorithm* GemmAlgorithms::find(const GemmSignature& signature) {
  const auto it = entries_.find(signature);
  if (it != entries_.end()) return &it->second.algorithm;
  if (loaded_.empty()) return nullptr;
  const auto loaded = loaded_.find(key(signature));
  if (loaded == loaded_.end()) return nullptr;
  return &(entries_[signature] = {.algorithm = loaded->second, .measured = true}).algorithm;
}

const GemmAlgorithm& GemmAlgorithms::add_first(const GemmSignature& signature, const GemmAlgorithm& algorithm) {
  return entries_.try_emplace(signature, Entry{.algorithm = algorithm}).first->second.algorithm;
}

void GemmAlgorithms::add_measured(const GemmSignature& signature, const GemmAlgorithm& algorithm) {
  require(choice_ == GemmChoice::kMeasured, "a measured GEMM algorithm in a table of first answers");
  entries_[signature] = {.algorithm = algorithm, .measured = true};
  ++version_;
}

std::vector<GemmSignature> GemmAlgorithms::pending() const {
  std::vector<GemmSignature> result;
  if (choice_ == GemmChoice::kFirst) return result;
  for (const auto& [signature, entry] : entries_) {
    if (!entry.measured) result.push_back(signature);
  }
  return result;
}

std::map<std::string, std::string> GemmAlgorithms::entries() const {
  std::map<std::string, std::string> result;
  for (const auto& [name, algorithm] : loaded_) result[name] = format(algorithm);
  for (const auto& [signature, entry] : entries_) {
    if (entry.measured) result[key(signature)] = format(entry.algorithm);
  }
  return result;
}

std::int64_t GemmAlgorithms::load(const std::map<std::string, std::string>& entries, std::string_view source) {
  const std::string prefix = environment_ + " | ";
  std::map<std::string, GemmAlgorithm> taken;
  for (const auto& [name, digits] : entries) {
    const std::optional<GemmAlgorithm> algorithm = parse(digits);
    if (!algorithm) {
      refuse_format(fmt::format("{}: GEMM algorithm of \"{}\"", source, name),
                    fmt::format("{} hexadecimal digits", kDigits * GemmAlgorithm{}.size()),
                    fmt::format("\"{}\"", digits), "delete the table, it is measured again");
    }
    if (name.starts_with(prefix)) taken[name] = *algorithm;
  }
  if (choice_ == GemmChoice::kFirst) return 0;
  if (!taken.empty()) ++version_;
  for (const auto& [name, algorithm] : taken) loaded_[name] = algorithm;
  for (auto& [signature, entry] : entries_) {
    const auto it = taken.find(key(signature));
    if (it != taken.end()) entry = {.algorithm = it->second, .measured = true};
  }
  return static_cast<std::int64_t>(taken.size());
}

}  // namespace megalith

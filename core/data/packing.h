// Packs of documents: which documents share a sample, and which samples share a microbatch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megalith {

enum class LongDocuments { kError, kTruncate, kDrop };  // order of the values of --sft-long

struct PackingOptions {
  std::int64_t seq_length = 0;    // S: rows of a pack, 1 to 2^31 - 1
  std::int64_t pad_multiple = 1;  // rows of a document are a multiple of it; a divisor of S
  LongDocuments long_documents = LongDocuments::kError;
  std::string subject = "--seq-length";  // place of the error of kError
};

// Pack p has documents[begin[p]] up to documents[begin[p + 1]], the longest first.
struct Packing {
  std::vector<std::int32_t> documents;  // indices of the packed documents
  std::vector<std::int64_t> begin;      // one entry per pack, and the number of packed documents
  std::int64_t num_long = 0;            // documents above S tokens, cut to S or dropped
  std::int64_t longest = 0;             // tokens of the longest document

  std::int64_t num_packs() const { return static_cast<std::int64_t>(begin.size()) - 1; }
  std::span<const std::int32_t> pack(std::int64_t p) const {
    const auto at = static_cast<std::size_t>(p);
    return std::span(documents).subspan(static_cast<std::size_t>(begin[at]),
                                        static_cast<std::size_t>(begin[at + 1] - begin[at]));
  }
};

// Returns `length` rounded up to a multiple of `multiple`.
constexpr std::int64_t padded_rows(std::int64_t length, std::int64_t multiple) {
  return (length + multiple - 1) / multiple * multiple;
}

// Distributes documents of `lengths` tokens, each at least 1, over packs of at most S rows. The method is first-fit
// decreasing: documents by falling number of rows, equal ones in the order of the input, each into the first pack with
// enough rows left. The result needs at most 11/9 of the fewest packs, plus one. Time O(n log n); at most 2^31 - 1
// documents. Error kUsage for documents above S tokens with kError.
Packing pack_documents(std::span<const std::int32_t> lengths, const PackingOptions& options);

struct PackingReport {
  std::int64_t packs = 0;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  double fill = 0.0;            // tokens over rows of all packs
  double mean_documents = 0.0;  // per pack
  std::int64_t max_documents = 0;
  // Largest over mean sum of squared lengths per pack. Attention costs that sum.
  double imbalance = 0.0;
};
PackingReport report_packing(const Packing& packing, std::span<const std::int32_t> lengths, std::int64_t seq_length);

// Microbatches of a step over all data-parallel ranks.
struct StepShape {
  std::int64_t ranks = 1;                 // R, data-parallel
  std::int64_t microbatches = 1;          // M per rank
  std::int64_t packs_per_microbatch = 1;  // B
};

// Assigns the G = R M B packs of a step to microbatches so that the sums of `squares` (of each pack) are even. Entry
// (m R + r) B + b of the result is the pack that rank r reads as its b-th of microbatch m; each pack occurs once. The
// place is that of microbatch_samples() in sampler.h.
//
// Longest processing time first: packs by falling squares, equal ones in order, each to the microbatch with the least
// sum that has fewer than B. Then microbatches of close sums are concurrent: they get one m. Within an m the largest
// goes to the rank with the least sum so far. The result depends on the arguments alone.
std::vector<std::int64_t> balance(std::span<const std::int64_t> squares, const StepShape& shape);

// Returns a number in [0, R M) for each microbatch of an order that balance() returned. The number of a microbatch
// depends on R M, not on R.
std::vector<std::int64_t> number_microbatches(std::span<const std::int64_t> order, std::int64_t packs_per_microbatch);

}  // namespace megalith

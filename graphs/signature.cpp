#include "graphs/signature.h"

#include <utility>

#include "core/base/digest.h"

namespace megalith {

std::string_view difference(const GraphSignature& captured, const GraphSignature& now) {
  using Part = std::pair<std::uint64_t GraphSignature::*, std::string_view>;
  for (const auto& [field, name] : {Part{&GraphSignature::actions, "the list of actions"},
                                    {&GraphSignature::plan, "the memory plan"},
                                    {&GraphSignature::addresses, "an address of memory, parameters or gradients"},
                                    {&GraphSignature::microbatches, "the number of microbatches"},
                                    {&GraphSignature::sequences, "the sequences of a microbatch"},
                                    {&GraphSignature::seq_length, "the sequence length"},
                                    {&GraphSignature::gemms, "the choice of GEMM algorithms"},
                                    {&GraphSignature::hooks, "the number of hooks"}}) {
    if (captured.*field != now.*field) return name;
  }
  return {};
}

std::uint64_t digest_of_hooks(const SegmentRunner& segments) {
  std::uint64_t digest = kEmptyDigest;
  for (int s = 0; s < segments.num_segments(); ++s) {
    for (int point = 0; point < kNumHookPoints; ++point)
      fold(digest, segments.entry(s).hooks.size(static_cast<HookPoint>(point)));
  }
  return digest;
}

std::uint64_t digest_of(const std::vector<Action>& actions) {
  std::uint64_t digest = kEmptyDigest;
  for (const Action& a : actions) {
    for (const int part : {static_cast<int>(a.kind), a.chunk, a.microbatch, a.segment, a.column, a.item, a.peer})
      fold(digest, static_cast<std::uint64_t>(part));
  }
  return digest;
}

}  // namespace megalith

#include "core/tokenizer/word_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace megalith {

void WordCache::allocate() {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  constexpr std::size_t kBytes = kEntries * sizeof(Entry);
  static_assert(kBytes % kHugePage == 0);
  void* memory = std::aligned_alloc(kHugePage, kBytes);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, kBytes, MADV_HUGEPAGE);  // fewer TLB misses; only a hint
  auto* entries = static_cast<Entry*>(memory);
  std::uninitialized_value_construct_n(entries, kEntries);
  entries_.reset(entries);
}

}  // namespace megalith

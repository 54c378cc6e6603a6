// The half of the fixture that checks the reads of access(), on which the hazard checker and the memory plan rely. If a
// read is missing, other work may write the tensor too early, or reuse its memory ahead of the op's run.
#include <algorithm>
#include <cmath>

#include "tests/support/elements.h"
#include "tests/support/op_test.h"

namespace megalith::test {

namespace {

constexpr int kChanges = 2;
constexpr std::size_t kMaxReads = 16;  // changed alone in one run
// Larger tests cover sizes; the same op's small tests check their reads, since the host's copies are slow.
constexpr std::size_t kMostBytes = std::size_t{8} << 20;

// Writes another value. First NaN, which goes through all arithmetic, and for an index its neighbor. Then a number, as
// comparisons skip NaN, and -1, the token that does not count.
void change(std::byte* at, DType type, int attempt) {
  switch (type) {
    case DType::kInt32:
    case DType::kInt64:
      if (attempt > 0) return set_element(at, type, element(at, type) == -1 ? 0 : -1);
      *at ^= std::byte{1};
      return;
    case DType::kUint8: *at = attempt == 0 ? *at ^ std::byte{0x81} : std::byte{0}; return;
    default: break;
  }
  const double value = element(at, type);
  if (attempt == 0 && !std::isnan(value)) return set_element(at, type, std::nan(""));
  set_element(at, type, std::isfinite(value) ? 0.5 - 2 * value : 1.5);
}

// Read elements, one by one, without the gaps of a strided view. `type` if the op did not declare it.
Tensor view_of(const AccessRange& range, DType type) {
  auto* const begin = const_cast<void*>(range.begin);
  if (range.dtype >= 0) type = static_cast<DType>(range.dtype);
  if (range.sizes.empty()) return Tensor(begin, type, {static_cast<std::int64_t>(range.bytes / size_of(type))});
  Shape shape;
  for (const std::int64_t size : range.sizes) shape.push_back(size);
  Tensor view(begin, type, shape);
  std::copy(range.strides.begin(), range.strides.end(), view.strides.begin());
  return view;
}

}  // namespace

std::size_t OpTest::buffer_of(const void* address) const {
  const auto holds = [address](const Buffer& b) {
    return address >= b.address && address < b.address + b.initial.size();
  };
  return static_cast<std::size_t>(std::find_if(buffers_.begin(), buffers_.end(), holds) - buffers_.begin());
}

// Bytes that neither run wrote may differ from the start.
bool OpTest::changes_the_effect(const Contents& start, const Enqueue& enqueue, const Effect& eager) {
  restore(start);
  try {
    enqueue(*stream_);
    stream_->synchronize();
  } catch (const Error&) {  // the changed value was rejected
    return true;
  }
  const Contents after = snapshot(start);
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    if (start[b].empty() || after[b] == eager.after[b]) continue;
    for (std::size_t i = 0; i < after[b].size(); ++i) {
      const bool untouched = eager.after[b][i] == eager.before[b][i] && after[b][i] == start[b][i];
      if (after[b][i] != eager.after[b][i] && !untouched) return true;
    }
  }
  return false;
}

void OpTest::expect_declared_reads(const Access& accesses, const Enqueue& enqueue, const Effect& eager,
                                   const Idles& idle) {
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.initial.size();
  if (bytes > kMostBytes) return;
  std::vector<DeclaredRead> reads;
  Contents touched(buffers_.size());
  bool writes = false;
  for (const AccessRange& range : accesses.ranges()) {
    if (workspace_ && range.begin == workspace_.data) continue;
    const std::size_t b = buffer_of(range.begin);
    ASSERT_LT(b, buffers_.size()) << "access() names memory that is not of this test, where nothing can be checked";
    touched[b] = buffers_[b].initial;
    writes = writes || range.write;
    if (!range.write) reads.push_back({b, view_of(range, buffers_[b].type)});
  }
  if (!writes) return;  // no rows
  expect_no_undeclared_read(reads, enqueue, eager);
  for (const Idle& one : idle) {
    const auto is_it = [&](const DeclaredRead& read) { return read.view.data == one.read; };
    EXPECT_TRUE(std::any_of(reads.begin(), reads.end(), is_it))
        << "access() declares no read that could be without influence as " << one.because;
  }
  const std::size_t count = std::min(reads.size(), kMaxReads);
  for (std::size_t i = 0; i < count; ++i)
    expect_influence(reads[i * reads.size() / count], touched, enqueue, eager, idle);
}

void OpTest::expect_no_undeclared_read(const std::vector<DeclaredRead>& reads, const Enqueue& enqueue,
                                       const Effect& eager) {
  Contents changed;
  for (Buffer& buffer : buffers_) {
    if (buffer.changed.empty()) {
      buffer.changed = buffer.initial;
      const std::size_t step = size_of(buffer.type), end = buffer.changed.size() - kGuardBytes;
      for (std::size_t i = kGuardBytes; i < end; i += step) change(&buffer.changed[i], buffer.type, 0);
      for (std::size_t i = 0; i < kGuardBytes; ++i) {
        buffer.changed[i] ^= std::byte{0x5A};
        buffer.changed[end + i] ^= std::byte{0x5A};
      }
    }
    changed.push_back(buffer.changed);
  }
  for (const DeclaredRead& read : reads) {
    const std::byte* const from = buffers_[read.buffer].initial.data();
    const std::ptrdiff_t first = read.view.as<const std::byte>() - buffers_[read.buffer].address;
    const std::size_t size = size_of(read.view.dtype);
    for_each_element(read.view, [&](std::int64_t, std::int64_t offset) {
      const auto at = static_cast<std::size_t>(first) + static_cast<std::size_t>(offset) * size;
      std::copy_n(from + at, size, changed[read.buffer].begin() + static_cast<std::ptrdiff_t>(at));
    });
  }
  if (!changes_the_effect(changed, enqueue, eager)) return;
  // Changed up to here the tensors do not show, with one more they do.
  std::size_t same = 0, differs = buffers_.size();
  while (differs - same > 1) {
    const std::size_t middle = (same + differs) / 2;
    Contents start = eager.before;
    std::copy_n(changed.begin(), middle, start.begin());
    (changes_the_effect(start, enqueue, eager) ? differs : same) = middle;
  }
  ADD_FAILURE() << "reads what access() does not declare as read: tensor " << same << " of this test, "
                << name_of(buffers_[same].type) << ", " << buffers_[same].initial.size() - 2 * kGuardBytes << " bytes";
}

void OpTest::expect_influence(const DeclaredRead& read, const Contents& touched, const Enqueue& enqueue,
                              const Effect& eager, const Idles& idle) {
  bool influences = false;
  for (int attempt = 0; attempt < kChanges && !influences; ++attempt) {
    Contents start = touched;
    std::byte* const first = start[read.buffer].data() + (read.view.as<std::byte>() - buffers_[read.buffer].address);
    const std::size_t size = size_of(read.view.dtype);
    for_each_element(read.view, [&](std::int64_t, std::int64_t offset) {
      change(first + static_cast<std::size_t>(offset) * size, read.view.dtype, attempt);
    });
    influences = changes_the_effect(start, enqueue, eager);
  }
  const auto found =
      std::find_if(idle.begin(), idle.end(), [&](const Idle& one) { return one.read == read.view.data; });
  if (influences == (found == idle.end())) return;
  ADD_FAILURE() << "tensor " << read.buffer << " of this test, " << name_of(read.view.dtype) << " "
                << to_string(read.view.shape)
                << (influences ? ", has an influence, but is said to have none: "
                               : " is declared as read by access(), but has no influence")
                << (influences ? found->because : "");
}

}  // namespace megalith::test

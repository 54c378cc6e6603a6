// The part of the fixture that checks check(). Each field, broken separately in one form, must be rejected by its name.
// It also finds missing declarations, such as dtypes: an op that accepts any must declare so.
#include <cstring>

#include "tests/support/op_test.h"

namespace megalith::test {

namespace {

constexpr std::size_t kMaxFields = 16;  // for an op with a list

Tensor& tensor_of(const Field& field) { return const_cast<Tensor&>(*field.tensor); }

// Puts a field back as it was.
class Restored {
 public:
  explicit Restored(const Field& field) : field_(field) {
    if (field.tensor != nullptr) {
      tensor_ = *field.tensor;
    } else {
      pointer_ = *field.pointer;
    }
  }
  ~Restored() {
    if (field_.tensor != nullptr) {
      tensor_of(field_) = tensor_;
    } else {
      move_to(field_, pointer_);
    }
  }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

  static void move_to(const Field& field, const void* address) {
    if (field.tensor != nullptr) {
      tensor_of(field).data = const_cast<void*>(address);
    } else {
      std::memcpy(const_cast<void*>(static_cast<const void*>(field.pointer)), &address, sizeof(address));
    }
  }

 private:
  const Field& field_;
  Tensor tensor_;
  const void* pointer_ = nullptr;
};

bool break_dtype(const Field& field, Tensor& x) {
  for (const DType dtype : kDTypes) {
    if (!field.rules.dtypes.contains(dtype)) return x.dtype = dtype, true;
  }
  return false;
}

bool break_rank(const Field& field, Tensor& x) {
  if (!field.rules.shape && field.rules.high_rank >= kMaxDims) return false;
  x = Tensor(x.data, x.dtype, {1, 1, 1, 1, 1, 1});
  return true;
}

// An exact shape may get an extent from its own tensor, but not all of them.
bool break_shape(const Field& field, Tensor& x) {
  if (!field.rules.shape || x.rank() == 0) return false;
  for (int d = 0; d < x.rank(); ++d) ++x.shape[d];
  return true;
}

bool break_last_stride(const Field& field, Tensor& x) {
  if (field.rules.layout == Layout::kAny || x.rank() == 0 || x.size(-1) < 2) return false;
  return x.strides[static_cast<std::size_t>(x.rank() - 1)] = 2, true;
}

bool break_first_stride(const Field& field, Tensor& x) {
  if (field.rules.layout != Layout::kDense || x.rank() < 2 || x.size(0) < 2) return false;
  return ++x.strides[0], true;
}

bool add_bound(const Field& field, Tensor& x) {
  static constexpr std::int32_t kRows = 1;
  return x.bound = &kRows, !field.rules.takes_bound;
}

// Puts `field`, which is written, over a part of `other`; false: they may share it, or there is none.
bool overlap(const Field& field, const Field& other) {
  if (!field.writes || !(other.reads || other.writes) || field.bytes == 0 || other.bytes == 0) return false;
  if (field.element != other.element && field.element >= 0 && other.element >= 0) return false;
  std::size_t step = 0;  // over all of it unless they may be one
  for (const auto& [one, that] : {std::pair{&field, &other}, std::pair{&other, &field}}) {
    for (std::size_t i = 0; i < one->num_friends; ++i) {
      if (that->tensor == nullptr || one->friends[i].tensor != that->tensor) continue;
      if (one->friends[i].interleaves) return false;
      step = size_of(that->tensor->dtype);
    }
  }
  Restored::move_to(field, static_cast<const std::byte*>(other.begin()) + step);
  return step < other.bytes;
}

}  // namespace

void OpTest::expect_refusals(const std::vector<Field>& list, const std::function<void()>& check) {
  const std::size_t count = std::min(list.size(), kMaxFields);
  for (std::size_t i = 0; i < count; ++i) {
    const Field& field = list[i];
    const auto refuses = [&](const char* what) {
      SCOPED_TRACE(what);
      expect_refusal(check, field.name);
    };
    if (!field.rules.optional) {
      const Restored restored(field);
      field.tensor != nullptr ? void(tensor_of(field) = Tensor()) : Restored::move_to(field, nullptr);
      refuses("missing");
    }
    for (std::size_t j = 0; j < count; ++j) {
      const Restored restored(field);
      if (j != i && overlap(field, list[j])) refuses("overlapping");
    }
    if (field.tensor == nullptr) continue;
    const auto broken = [&](bool (*breaks)(const Field&, Tensor&), const char* what) {
      const Restored restored(field);
      if (breaks(field, tensor_of(field))) refuses(what);
    };
    broken(break_dtype, "another dtype");
    broken(break_rank, "6 dims");
    broken(break_shape, "longer dims");
    broken(break_last_stride, "stride 2 in the last dim");
    broken(break_first_stride, "strided rows");
    broken(add_bound, "a bound");
  }
}

}  // namespace megalith::test

// Declaration of an op's reads and writes and their requirements, in the op's .cpp file:
//   void fields(const RmsNormForward& op, Fields& f) {
//     f.in(op.x, "op.x").floating().rank(2, 4).strided_rows();
//     f.in(op.weight, "op.weight").shape({op.x.size(-1)}).dtype(op.x.dtype);
//     f.out(op.y, "op.y").like(op.x).strided_rows();
//   }
// check and access (op.h) and the tests of refusals (tests/support/op_test_refusals.cpp) follow from the list. Each
// field declares its dtypes and its shape. By default a field is present, dense and unbounded, and an output overlaps
// no other field. A field is checked when the next one begins, so that its shape may serve the next one's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/instruments/access.h"
#include "core/tensor/check.h"
#include "core/tensor/tensor.h"

namespace megalith {

enum class Layout : std::uint8_t { kDense, kStridedRows, kAny };

// Requirements on a tensor.
struct FieldRules {
  DTypeSet dtypes;
  std::optional<Shape> shape;  // otherwise any of these ranks
  int low_rank = 0;
  int high_rank = -1;
  Layout layout = Layout::kDense;
  bool optional = false;
  bool takes_bound = false;
  const std::int32_t* bound = nullptr;  // the only allowed bound
  std::int64_t experts = 0;             // experts that own the rows
  const Tensor* offsets = nullptr;      // the experts' offsets; null: equal numbers of rows
};

struct Field {
  std::string_view name;
  Place place;
  const Tensor* tensor = nullptr;
  const void* const* pointer = nullptr;  // pointer to device memory other than a tensor
  std::size_t bytes = 0;                 // first to last byte, including gaps; set by the check
  bool reads = false;
  bool writes = false;
  bool is_workspace = false;
  int element = -1;  // list element, -1: the op itself
  std::optional<std::size_t> moved;
  FieldRules rules;
  struct Friend {
    const Tensor* tensor;
    bool interleaves;
  };
  std::array<Friend, 2> friends;  // the first num_friends are valid
  std::size_t num_friends = 0;

  Field& dtype(DTypeSet allowed) { return rules.dtypes = allowed, *this; }
  Field& dtype(DType only) { return dtype(DTypeSet{only}); }
  Field& floating() { return dtype(kFloatTypes); }
  Field& any_dtype() { return dtype(DTypeSet::all()); }
  Field& shape(const Shape& exact) { return rules.shape = exact, *this; }
  Field& rank(int low, int high) { return rules.low_rank = low, rules.high_rank = high, *this; }
  Field& rank(int only) { return rank(only, only); }
  Field& any_shape() { return rank(0, kMaxDims); }
  // Requires the shape and dtype of `model`, and its bound if it has one.
  Field& like(const Tensor& model) { return rules.bound = model.bound, shape(model.shape).dtype(model.dtype); }
  Field& strided_rows() { return rules.layout = Layout::kStridedRows, *this; }  // stride 1 in the last dim
  Field& any_strides() { return rules.layout = Layout::kAny, *this; }
  Field& optional() { return needed_if(false); }
  Field& needed_if(bool condition) { return rules.optional = !condition, *this; }
  // Allows a bound of dim 0. The op reads it and leaves rows beyond it unchanged.
  Field& bounded() { return rules.takes_bound = true, *this; }
  // Allows a bound at the end of `offsets`, another field of the op: the rows that belong to experts.
  Field& bounded_by(const Tensor& offsets) {
    rules.bound = offsets.as<const std::int32_t>() + offsets.numel() - 1;
    rules.offsets = &offsets;
    return of_experts(offsets.numel() - 1);
  }
  // Dim 0 has `count` equal groups of rows, one per expert.
  Field& of_experts(std::int64_t count) { return rules.experts = count, *this; }
  Field& read_if(bool condition) { return reads = condition, *this; }
  Field& write_if(bool condition) { return writes = condition, *this; }
  // The op moves only `some` bytes of its memory, at any offsets.
  Field& moves(std::size_t some) { return moved = some, *this; }
  // May be `other` itself, element for element.
  Field& may_be(const Tensor& other) { return friends.at(num_friends++) = {&other, false}, *this; }
  // May interleave its rows with those of `other`, such as slices of one fused tensor.
  Field& may_interleave(const Tensor& other) { return friends.at(num_friends++) = {&other, true}, *this; }

  const void* begin() const { return tensor != nullptr ? tensor->data : *pointer; }
  bool is_absent() const { return rules.optional && begin() == nullptr; }
  bool overlaps(const Field& other) const {
    const auto *mine = static_cast<const std::byte*>(begin()), *others = static_cast<const std::byte*>(other.begin());
    return mine < others + other.bytes && others < mine + bytes && bytes != 0 && other.bytes != 0;
  }
  bool may_share(const Field& other) const;
  void check() const;
  void check_overlap(const Field& earlier) const;  // unless the overlap is allowed
  void add_to(Access& access) const;
};

class Fields {
 public:
  // Adds the fields to `access`, and to `seen` (for tests).
  explicit Fields(Access* access = nullptr, std::vector<Field>* seen = nullptr) : access_(access), seen_(seen) {}

  // Adds a Tensor, or a T* to a T in device memory.
  template <class Memory>
  Field& in(const Memory& memory, std::string_view name, Place place = Place::current()) {
    return add(memory, name, place).read_if(true);
  }
  template <class Memory>
  Field& out(const Memory& memory, std::string_view name, Place place = Place::current()) {
    return add(memory, name, place).write_if(true);
  }
  template <class Memory>
  Field& inout(const Memory& memory, std::string_view name, Place place = Place::current()) {
    return in(memory, name, place).write_if(true);
  }
  // Scratch of workspace_bytes(op, device) bytes; contents are not preserved.
  Field& workspace(const Tensor& tensor, Place place = Place::current());
  // Starts the next element of a list, whose fields may overlap those of other elements.
  void next_element();

  void range(double value, double low, double high, std::string_view name, Place place = Place::current());
  // Adds any other rule; the error has `got`.
  template <class T>
  void expect(bool holds, std::string_view name, std::string_view expected, const T& got,
              Place place = Place::current()) {
    close();
    if (!holds) [[unlikely]]
      fail({.subject = std::string(name), .expected = std::string(expected), .got = written(got)}, place);
  }
  // Sets the cost; default: the memory moved.
  void cost(const Cost& cost) {
    if (access_ != nullptr) access_->set_cost(cost);
  }
  void copies() {
    if (access_ != nullptr) access_->set_copy();
  }

  void close();  // checks the latest field; called after the last one

 private:
  static constexpr std::size_t kMaxFields = 16;
  union Room {  // storage of a field that is constructed when added
    Room() {}
    Field field;
  };

  Field& add(const Tensor& tensor, std::string_view name, Place place) {
    Field& field = add(name, place);
    field.tensor = &tensor;
    return field;
  }
  template <class T>
  Field& add(T* const& pointer, std::string_view name, Place place) {
    Field& field = add(name, place);
    field.pointer = reinterpret_cast<const void* const*>(&pointer);
    field.bytes = sizeof(T);
    return field;
  }
  static std::string written(double number);
  static std::string written(std::int64_t number) { return std::to_string(number); }
  static std::string written(std::string_view text) { return std::string(text); }
  static std::string written(const Shape& shape) { return to_string(shape); }
  Field& add(std::string_view name, Place place);

  Access* access_;
  std::vector<Field>* seen_;
  std::array<Room, kMaxFields> rooms_;
  std::size_t open_ = 0;       // fields of the op, then of one element
  std::size_t closed_ = 0;     // checked fields
  std::size_t of_the_op_ = 0;  // fields ahead of the elements
  int element_ = -1;
};

}  // namespace megalith

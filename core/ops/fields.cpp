#include "core/ops/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "core/ops/op.h"

namespace megalith {

namespace {

void check_layout(const Field& field) {
  switch (field.rules.layout) {
    case Layout::kDense: return check_contiguous(*field.tensor, field.name, field.place);
    case Layout::kStridedRows: return check_rows(*field.tensor, field.name, field.place);
    case Layout::kAny: return;
  }
}

void check_bound(const Field& field) {
  const FieldRules& rules = field.rules;
  const std::int32_t* bound = field.tensor->bound;
  if (bound == nullptr || rules.takes_bound || bound == rules.bound) return;
  const bool may_have_one = rules.bound != nullptr;
  fail({.subject = std::string(field.name),
        .expected = may_have_one ? "no bound but that of the tensor it is like, or the end of op.offsets" : "no bound",
        .got = may_have_one ? "another" : "one"},
       field.place);
}

bool same_elements(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.shape == b.shape && a.strides == b.strides && a.dtype == b.dtype;
}

}  // namespace

void Field::check() const {
  if (tensor == nullptr) {
    if (*pointer != nullptr) return;
    fail({.subject = std::string(name), .expected = "a device address", .got = "null"}, place);
  }
  if (rules.shape) {
    check_shape(*tensor, *rules.shape, name, place);
  } else {
    check_rank(*tensor, rules.low_rank, rules.high_rank, name, place);
  }
  check_dtype(*tensor, rules.dtypes, name, place);
  check_layout(*this);
  check_bound(*this);
}

bool Field::may_share(const Field& other) const {
  const auto shares = [&](const Friend& one) {
    return one.tensor == other.tensor && (one.interleaves || same_elements(*tensor, *other.tensor));
  };
  return std::any_of(friends.begin(), friends.begin() + num_friends, shares);
}

void Field::check_overlap(const Field& earlier) const {
  const bool both_used = (reads || writes) && (earlier.reads || earlier.writes);
  if (!both_used || may_share(earlier) || earlier.may_share(*this)) return;
  const bool ours_first = !earlier.writes;
  fail({.subject = fmt::format("{} and {}", ours_first ? name : earlier.name, ours_first ? earlier.name : name),
        .expected = "separate memory",
        .got = "an overlap"},
       place);
}

void Field::add_to(Access& access) const {
  if (is_workspace) return access.uses(*tensor);
  if (tensor == nullptr) {
    if (reads) access.add(*pointer, bytes, false);
    if (writes) access.add(*pointer, bytes, true);
    return;
  }
  const std::size_t before = access.moved_bytes(), ranges = access.ranges().size();
  if (reads) access.reads(*tensor);
  if (writes) access.writes(*tensor);
  if (rules.experts > 0) {
    const auto* const offsets = rules.offsets == nullptr ? nullptr : rules.offsets->as<const std::int32_t>();
    access.set_experts(ranges, {.experts = rules.experts, .rows = tensor->size(0), .offsets = offsets});
  } else if (tensor->bound != nullptr) {
    access.set_experts(ranges, {.rows = tensor->size(0)});
  }
  if (moved) access.set_moved_bytes(before + *moved * (int{reads} + int{writes}));
  if (rules.takes_bound) access.add(tensor->bound, sizeof(*tensor->bound), false);
}

Field& Fields::workspace(const Tensor& tensor, Place place) {
  Field& field = add(tensor, "op.workspace", place).write_if(true);
  field.is_workspace = true;
  return field.dtype(DType::kUint8).rank(1).optional();
}

Field& Fields::add(std::string_view name, Place place) {
  close();
  require(open_ < kMaxFields, "Fields: more fields than an op may have");
  Field& field = *new (&rooms_[open_++].field) Field;  // no parentheses, which would zero it first
  field.name = name;
  field.place = place;
  field.element = element_;
  return field;
}

void Fields::close() {
  if (closed_ == open_) return;
  Field& field = rooms_[closed_].field;
  if (field.is_absent()) {
    --open_;
    return;
  }
  field.check();
  if (const Tensor* x = field.tensor)
    field.bytes = field.rules.layout == Layout::kDense ? x->bytes() : x->extent_bytes();
  for (std::size_t i = 0; i < closed_; ++i) {
    const Field& earlier = rooms_[i].field;
    if ((field.writes || earlier.writes) && field.overlaps(earlier)) field.check_overlap(earlier);
  }
  if (access_ != nullptr) field.add_to(*access_);
  if (seen_ != nullptr) seen_->push_back(field);
  ++closed_;
}

void Fields::next_element() {
  close();
  if (element_++ == -1) of_the_op_ = closed_;
  open_ = closed_ = of_the_op_;
}

void Fields::range(double value, double low, double high, std::string_view name, Place place) {
  close();
  if (value >= low && value <= high) return;
  fail({.subject = std::string(name), .expected = fmt::format("{} to {}", low, high), .got = written(value)}, place);
}

std::string Fields::written(double number) { return fmt::format("{}", number); }

void check_workspace(const Tensor& workspace, std::size_t needed, DeviceType device) {
  const std::size_t bytes = workspace.present() ? workspace.bytes() : 0;
  if (bytes >= needed) return;
  fail({.subject = "op.workspace",
        .expected = fmt::format("at least {} bytes on {}", needed, name_of(device)),
        .got = fmt::format("{}", bytes)});
}

}  // namespace megalith

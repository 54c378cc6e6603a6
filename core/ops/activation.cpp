#include "core/ops/activation.h"

#include "core/ops/op_checks.h"

namespace megalith {

namespace {

// `t` has the dtype and shape of `x` and is contiguous.
void check_like(const Tensor& t, const Tensor& x, std::string_view name, Place place = Place::current()) {
  check_shape(t, x.shape, name, place);
  check_dtype(t, {x.dtype}, name, place);
  check_contiguous(t, name, place);
}

// `wide` is [T, 2F] for `narrow` [T, F].
void check_gated(const Tensor& wide, std::string_view wide_name, const Tensor& narrow, std::string_view narrow_name,
                 Place place = Place::current()) {
  check_rank(narrow, 2, narrow_name, place);
  check_dtype(narrow, kFloatTypes, narrow_name, place);
  check_rows(narrow, narrow_name, place);
  check_shape(wide, {narrow.size(0), 2 * narrow.size(1)}, wide_name, place);
  check_dtype(wide, {narrow.dtype}, wide_name, place);
  check_rows(wide, wide_name, place);
}

}  // namespace

void check(const GeluForward& op) {
  check_dtype(op.x, kFloatTypes, "op.x");
  check_contiguous(op.x, "op.x");
  check_like(op.y, op.x, "op.y");
  check_same_or_apart(op.x, "op.x", op.y, "op.y");
}

void access(const GeluForward& op, Access& a) {
  a.reads(op.x);
  a.writes(op.y);
}

void check(const GeluBackward& op) {
  check_dtype(op.x, kFloatTypes, "op.x");
  check_contiguous(op.x, "op.x");
  check_like(op.dy, op.x, "op.dy");
  check_like(op.dx, op.x, "op.dx");
  check_same_or_apart(op.dy, "op.dy", op.dx, "op.dx");
  check_same_or_apart(op.x, "op.x", op.dx, "op.dx");
}

void access(const GeluBackward& op, Access& a) {
  a.reads(op.x);
  a.reads(op.dy);
  a.writes(op.dx);
}

void check(const SwigluForward& op) {
  check_gated(op.x, "op.x", op.y, "op.y");
  check_no_overlap(op.x, "op.x", op.y, "op.y");
}

void access(const SwigluForward& op, Access& a) {
  a.reads(op.x);
  a.writes(op.y);
}

void check(const SwigluBackward& op) {
  check_gated(op.x, "op.x", op.dy, "op.dy");
  check_gated(op.dx, "op.dx", op.dy, "op.dy");
  check_same_or_apart(op.x, "op.x", op.dx, "op.dx");
  check_no_overlap(op.dy, "op.dy", op.dx, "op.dx");
  if (!op.y) return;
  check_shape(op.y, op.dy.shape, "op.y");
  check_dtype(op.y, {op.dy.dtype}, "op.y");
  check_rows(op.y, "op.y");
  check_same_or_apart(op.y, "op.y", op.dy, "op.dy");
  check_no_overlap(op.y, "op.y", op.x, "op.x");
  check_no_overlap(op.y, "op.y", op.dx, "op.dx");
}

void access(const SwigluBackward& op, Access& a) {
  a.reads(op.x);
  a.reads(op.dy);
  a.writes(op.dx);
  a.writes(op.y);
}

}  // namespace megalith

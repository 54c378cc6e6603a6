#include "core/ops/sampling.h"

#include <fmt/format.h>

#include <limits>

#include "core/ops/op_checks.h"

namespace megalith {

namespace {

void check_logits(const Tensor& logits, std::int64_t vocab_size, const Tensor& out, Place place = Place::current()) {
  check_rank(logits, 2, "op.logits", place);
  check_dtype(logits, kFloatTypes, "op.logits", place);
  check_rows(logits, "op.logits", place);
  check_range(static_cast<double>(vocab_size), 1, static_cast<double>(logits.size(1)), "op.vocab_size", place);
  check_shape(out, {logits.size(0)}, "op.out", place);
  check_dtype(out, {DType::kInt32}, "op.out", place);
  check_contiguous(out, "op.out", place);
}

}  // namespace

void check(const Argmax& op) { check_logits(op.logits, op.vocab_size, op.out); }

void access(const Argmax& op, Access& a) {
  a.reads(op.logits);
  a.writes(op.out);
}

// Of one row at a time: weight and index of each candidate.
std::size_t workspace_bytes(const Sample& op) {
  return static_cast<std::size_t>(op.vocab_size) * (sizeof(float) + sizeof(std::int32_t));
}

void check(const Sample& op) {
  check_logits(op.logits, op.vocab_size, op.out);
  check_range(op.temperature, 0, std::numeric_limits<float>::max(), "op.temperature");
  check_range(op.top_k, 0, std::numeric_limits<int>::max(), "op.top_k");
  check_range(op.top_p, 0, 1, "op.top_p");
  check_pointer(op.position, "op.position");
  check_dtype(op.workspace, {DType::kUint8}, "op.workspace");
  check_contiguous(op.workspace, "op.workspace");
  if (op.workspace.data == nullptr || op.workspace.bytes() < workspace_bytes(op)) {
    fail({.subject = "op.workspace",
          .expected = fmt::format("{} bytes", workspace_bytes(op)),
          .got = fmt::format("{}", op.workspace.data == nullptr ? 0 : op.workspace.bytes())});
  }
}

void access(const Sample& op, Access& a) {
  a.reads(op.logits);
  a.add(op.position, sizeof(std::int32_t), false);
  a.writes(op.workspace);
  a.writes(op.out);
}

}  // namespace megalith

#include "moe/ops/grouped_gemm/grouped_gemm.h"

#include "moe/ops/expert_fields.h"

namespace megalith {

namespace {

// Rows per expert of the stacked matrices.
std::int64_t rows_of_one(const Tensor& matrices, std::string_view name, std::int64_t experts, Fields& f) {
  f.expect(matrices.size(0) % experts == 0, name, "equal row counts for each expert of op.offsets", matrices.shape);
  return matrices.size(0) / experts;
}

struct RowsOperand {
  const Tensor& x;
  std::string_view name;
  const Tensor& index;
  std::string_view index_name;
};

// Declares an operand [rows, columns], or [any, columns] with an index of `rows` entries.
void rows_in(const RowsOperand& operand, const Shape& shape, DTypeSet dtypes, const Tensor& offsets, Fields& f) {
  const bool gathered = operand.index.present();
  f.in(operand.index, operand.index_name).dtype(DType::kInt32).shape({shape[0]}).bounded_by(offsets).optional();
  Field& x = f.in(operand.x, operand.name).dtype(dtypes).strided_rows();
  x.shape({gathered ? operand.x.size(0) : shape[0], shape[1]});
  if (!gathered) x.bounded_by(offsets);
}

void product_cost(Fields& f, const Shape& sizes, double fused_bytes) {
  double flops = 2;
  for (const std::int64_t size : sizes) flops *= static_cast<double>(size);
  f.cost({.work = Work::kMatrixProduct, .flops = flops, .bytes = fused_bytes});
}

double bytes_of(std::initializer_list<const Tensor*> fused) {
  std::size_t bytes = 0;
  for (const Tensor* x : fused) bytes += x->present() ? x->bytes() : 0;
  return static_cast<double>(bytes);
}

// Bytes of the tile counter.
std::size_t tile_counter_bytes(DeviceType device) { return device == DeviceType::kCuda ? sizeof(std::int32_t) : 0; }

}  // namespace

void fields(const GroupedGemm& op, Fields& f) {
  const std::int64_t count = experts(op.offsets, f);
  f.in(op.b, "op.b").floating().rank(2).of_experts(count);
  const std::int64_t height = rows_of_one(op.b, "op.b", count, f), width = op.b.size(1);
  f.in(op.b2, "op.b2").like(op.b).of_experts(count).optional();
  const std::int64_t pair = op.b2 ? 2 : 1;
  const std::int64_t rows = op.c.size(0), k = op.transpose_b ? width : pair * height;
  const std::int64_t n = op.transpose_b ? pair * height : width;
  f.out(op.c, "op.c").dtype(op.b.dtype).shape({rows, n}).strided_rows().bounded_by(op.offsets);
  rows_in({op.a, "op.a", op.index, "op.index"}, {rows, k}, DTypeSet{op.b.dtype}, op.offsets, f);
  f.workspace(op.workspace);
  product_cost(f, {rows, k, n}, 0);
}

std::size_t workspace_bytes(const GroupedGemm&, DeviceType device) { return tile_counter_bytes(device); }

void fields(const GroupedGemmWgrad& op, Fields& f) {
  require(!op.a_index || !op.b_index, "GroupedGemmWgrad: a_index and b_index together");
  const std::int64_t count = experts(op.offsets, f);
  f.out(op.c, "op.c").floating().rank(2).of_experts(count).read_if(op.accumulate);
  const std::int64_t m = rows_of_one(op.c, "op.c", count, f) * (op.c2 ? 2 : 1), n = op.c.size(1);
  f.out(op.c2, "op.c2").like(op.c).of_experts(count).optional().read_if(op.accumulate);
  const DTypeSet dtypes = op.c.dtype == DType::kBf16 ? DTypeSet{DType::kBf16} : kFloatTypes;
  const RowsOperand a{op.a, "op.a", op.a_index, "op.a_index"}, b{op.b, "op.b", op.b_index, "op.b_index"};
  // The operand without an index comes first, since its rows define the row count.
  const std::int64_t rows = op.a_index ? op.b.size(0) : op.a.size(0);
  if (op.a_index) {
    rows_in(b, {rows, n}, dtypes, op.offsets, f);
    rows_in(a, {rows, m}, DTypeSet{op.b.dtype}, op.offsets, f);
  } else {
    rows_in(a, {rows, m}, dtypes, op.offsets, f);
    rows_in(b, {rows, n}, DTypeSet{op.a.dtype}, op.offsets, f);
  }
  f.workspace(op.workspace);
  product_cost(f, {rows, m, n}, op.accumulate ? bytes_of({&op.c, &op.c2}) : 0);
}

std::size_t workspace_bytes(const GroupedGemmWgrad&, DeviceType device) { return tile_counter_bytes(device); }

void fields(const GroupedGemmSwiglu& op, Fields& f) {
  const std::int64_t count = experts(op.offsets, f);
  f.in(op.gate, "op.gate").floating().rank(2).of_experts(count);
  const std::int64_t columns = rows_of_one(op.gate, "op.gate", count, f), k = op.gate.size(1);
  f.in(op.up, "op.up").like(op.gate).of_experts(count);
  const std::int64_t rows = op.y.size(0);
  f.out(op.y, "op.y").dtype(op.gate.dtype).shape({rows, columns}).bounded_by(op.offsets);
  f.out(op.h, "op.h").dtype(op.gate.dtype).shape({rows, 2 * columns}).bounded_by(op.offsets);
  weights_in(op.row_weight, rows, op.offsets, f);
  rows_in({op.a, "op.a", op.index, "op.index"}, {rows, k}, DTypeSet{op.gate.dtype}, op.offsets, f);
  f.workspace(op.workspace);
  product_cost(f, {rows, k, 2 * columns}, bytes_of({&op.y, &op.row_weight}));
}

std::size_t workspace_bytes(const GroupedGemmSwiglu&, DeviceType device) { return tile_counter_bytes(device); }

void fields(const GroupedGemmSwigluBackward& op, Fields& f) {
  const std::int64_t count = experts(op.offsets, f);
  f.in(op.b, "op.b").floating().rank(2).of_experts(count);
  const std::int64_t k = rows_of_one(op.b, "op.b", count, f), columns = op.b.size(1), rows = op.y.size(0);
  f.out(op.y, "op.y").dtype(op.b.dtype).shape({rows, columns}).bounded_by(op.offsets);
  f.in(op.h, "op.h").dtype(op.b.dtype).shape({rows, 2 * columns}).bounded_by(op.offsets);
  f.out(op.dh, "op.dh").like(op.h).may_be(op.h).bounded_by(op.offsets);
  weights_in(op.row_weight, rows, op.offsets, f);
  partial_out(op.d_row_weight_partial, {rows, columns}, op.offsets, f);
  rows_in({op.dy, "op.dy", op.index, "op.index"}, {rows, k}, DTypeSet{op.b.dtype}, op.offsets, f);
  f.workspace(op.workspace);
  product_cost(f, {rows, k, columns}, bytes_of({&op.h, &op.dh, &op.row_weight, &op.d_row_weight_partial}));
}

std::size_t workspace_bytes(const GroupedGemmSwigluBackward&, DeviceType device) { return tile_counter_bytes(device); }

void fields(const RoutedSwigluForward& op, Fields& f) {
  experts(op.offsets, f);
  f.out(op.y, "op.y").floating().rank(2).bounded_by(op.offsets);
  const std::int64_t rows = op.y.size(0), columns = op.y.size(1);
  f.in(op.x, "op.x").dtype(op.y.dtype).shape({rows, 2 * columns}).bounded_by(op.offsets);
  weights_in(op.row_weight, rows, op.offsets, f);
}

void fields(const RoutedSwigluBackward& op, Fields& f) {
  experts(op.offsets, f);
  f.in(op.dy, "op.dy").floating().rank(2).bounded_by(op.offsets);
  const std::int64_t rows = op.dy.size(0), columns = op.dy.size(1);
  f.in(op.x, "op.x").dtype(op.dy.dtype).shape({rows, 2 * columns}).bounded_by(op.offsets);
  weights_in(op.row_weight, rows, op.offsets, f);
  f.out(op.dx, "op.dx").like(op.x).may_be(op.x).bounded_by(op.offsets);
  f.out(op.y, "op.y").like(op.dy).may_be(op.dy).bounded_by(op.offsets);
  partial_out(op.d_row_weight_partial, {rows, columns}, op.offsets, f);
}

}  // namespace megalith

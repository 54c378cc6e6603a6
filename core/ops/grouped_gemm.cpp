#include "core/ops/grouped_gemm.h"

namespace megalith {

namespace {

struct Experts {
  std::int64_t count;
  const std::int32_t* bound;  // of routed rows

  // Routed rows may be bounded by the last offset.
  void bound_rows(Field& field) const { field.rules.bound = bound; }
  // Rows of one expert's matrix, of which `matrices` has one below the other.
  std::int64_t rows_of_one(const Tensor& matrices, std::string_view name, Fields& f) const {
    f.expect(matrices.size(0) % count == 0, name, "as many rows for each expert of op.offsets", matrices.shape);
    return matrices.size(0) / count;
  }
};

Experts experts(const Tensor& offsets, Fields& f) {
  f.in(offsets, "op.offsets").dtype(DType::kInt32).rank(1);
  f.expect(offsets.size(0) >= 2, "op.offsets", "experts + 1 numbers, at least 2", offsets.shape);
  const std::int64_t count = offsets.size(0) - 1;
  return {count, offsets.as<const std::int32_t>() + count};
}

struct RowsOperand {
  const Tensor& x;
  std::string_view name;
  const Tensor& index;
  std::string_view index_name;
};

// [rows, columns], or of any number of rows with an index of `rows` numbers.
void rows_in(const RowsOperand& operand, const Shape& shape, DTypeSet dtypes, const Experts& all, Fields& f) {
  const bool gathered = operand.index.present();
  all.bound_rows(f.in(operand.index, operand.index_name).dtype(DType::kInt32).shape({shape[0]}).optional());
  Field& x = f.in(operand.x, operand.name).dtype(dtypes).strided_rows();
  x.shape({gathered ? operand.x.size(0) : shape[0], shape[1]});
  if (!gathered) all.bound_rows(x);
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

void weights_in(const Tensor& row_weight, std::int64_t rows, const Experts& all, Fields& f) {
  all.bound_rows(f.in(row_weight, "op.row_weight").dtype(DType::kFp32).shape({rows}));
}

Shape partial_shape(std::int64_t rows, std::int64_t columns) {
  return {rows, (columns + kPartialColumns - 1) / kPartialColumns};
}

}  // namespace

void fields(const GroupedGemm& op, Fields& f) {
  const Experts all = experts(op.offsets, f);
  f.in(op.b, "op.b").floating().rank(2);
  const std::int64_t height = all.rows_of_one(op.b, "op.b", f), width = op.b.size(1);
  f.in(op.b2, "op.b2").like(op.b).optional();
  const std::int64_t pair = op.b2 ? 2 : 1;
  const std::int64_t rows = op.c.size(0), k = op.transpose_b ? width : pair * height;
  const std::int64_t n = op.transpose_b ? pair * height : width;
  all.bound_rows(f.out(op.c, "op.c").dtype(op.b.dtype).shape({rows, n}).strided_rows());
  rows_in({op.a, "op.a", op.index, "op.index"}, {rows, k}, DTypeSet{op.b.dtype}, all, f);
  product_cost(f, {rows, k, n}, 0);
}

void fields(const GroupedGemmWgrad& op, Fields& f) {
  require(!op.a_index || !op.b_index, "GroupedGemmWgrad: a_index and b_index together");
  const Experts all = experts(op.offsets, f);
  f.inout(op.c, "op.c").floating().rank(2);
  const std::int64_t m = all.rows_of_one(op.c, "op.c", f) * (op.c2 ? 2 : 1), n = op.c.size(1);
  f.inout(op.c2, "op.c2").like(op.c).optional();
  const DTypeSet dtypes = op.c.dtype == DType::kBf16 ? DTypeSet{DType::kBf16} : kFloatTypes;
  const RowsOperand a{op.a, "op.a", op.a_index, "op.a_index"}, b{op.b, "op.b", op.b_index, "op.b_index"};
  // First the one whose rows are in order, which says how many there are.
  const std::int64_t rows = op.a_index ? op.b.size(0) : op.a.size(0);
  if (op.a_index) {
    rows_in(b, {rows, n}, dtypes, all, f);
    rows_in(a, {rows, m}, DTypeSet{op.b.dtype}, all, f);
  } else {
    rows_in(a, {rows, m}, dtypes, all, f);
    rows_in(b, {rows, n}, DTypeSet{op.a.dtype}, all, f);
  }
  product_cost(f, {rows, m, n}, bytes_of({&op.c, &op.c2}));
}

void fields(const GroupedGemmSwiglu& op, Fields& f) {
  const Experts all = experts(op.offsets, f);
  f.in(op.gate, "op.gate").floating().rank(2);
  const std::int64_t columns = all.rows_of_one(op.gate, "op.gate", f), k = op.gate.size(1);
  f.in(op.up, "op.up").like(op.gate);
  const std::int64_t rows = op.y.size(0);
  all.bound_rows(f.out(op.y, "op.y").dtype(op.gate.dtype).shape({rows, columns}));
  all.bound_rows(f.out(op.h, "op.h").dtype(op.gate.dtype).shape({rows, 2 * columns}));
  weights_in(op.row_weight, rows, all, f);
  rows_in({op.a, "op.a", op.index, "op.index"}, {rows, k}, DTypeSet{op.gate.dtype}, all, f);
  product_cost(f, {rows, k, 2 * columns}, bytes_of({&op.y, &op.row_weight}));
}

void fields(const GroupedGemmSwigluBackward& op, Fields& f) {
  const Experts all = experts(op.offsets, f);
  f.in(op.b, "op.b").floating().rank(2);
  const std::int64_t k = all.rows_of_one(op.b, "op.b", f), columns = op.b.size(1), rows = op.y.size(0);
  all.bound_rows(f.out(op.y, "op.y").dtype(op.b.dtype).shape({rows, columns}));
  all.bound_rows(f.in(op.h, "op.h").dtype(op.b.dtype).shape({rows, 2 * columns}));
  all.bound_rows(f.out(op.dh, "op.dh").like(op.h).may_be(op.h));
  weights_in(op.row_weight, rows, all, f);
  Field& partial = f.out(op.d_row_weight_partial, "op.d_row_weight_partial").dtype(DType::kFp32);
  all.bound_rows(partial.shape(partial_shape(rows, columns)));
  rows_in({op.dy, "op.dy", op.index, "op.index"}, {rows, k}, DTypeSet{op.b.dtype}, all, f);
  product_cost(f, {rows, k, columns}, bytes_of({&op.h, &op.dh, &op.row_weight, &op.d_row_weight_partial}));
}

void fields(const RoutedSwigluForward& op, Fields& f) {
  const Experts all = experts(op.offsets, f);
  all.bound_rows(f.out(op.y, "op.y").floating().rank(2));
  const std::int64_t rows = op.y.size(0), columns = op.y.size(1);
  all.bound_rows(f.in(op.x, "op.x").dtype(op.y.dtype).shape({rows, 2 * columns}));
  weights_in(op.row_weight, rows, all, f);
}

void fields(const RoutedSwigluBackward& op, Fields& f) {
  const Experts all = experts(op.offsets, f);
  all.bound_rows(f.in(op.dy, "op.dy").floating().rank(2));
  const std::int64_t rows = op.dy.size(0), columns = op.dy.size(1);
  all.bound_rows(f.in(op.x, "op.x").dtype(op.dy.dtype).shape({rows, 2 * columns}));
  weights_in(op.row_weight, rows, all, f);
  all.bound_rows(f.out(op.dx, "op.dx").like(op.x).may_be(op.x));
  all.bound_rows(f.out(op.y, "op.y").like(op.dy).may_be(op.dy));
  Field& partial = f.out(op.d_row_weight_partial, "op.d_row_weight_partial").dtype(DType::kFp32);
  all.bound_rows(partial.shape(partial_shape(rows, columns)));
}

}  // namespace megalith

#include "core/tensor/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/tensor/check.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class TensorTest : public testing::Test {
 protected:
  TensorTest() { std::iota(values_.begin(), values_.end(), 0.0f); }
  Tensor tensor(const Shape& shape) { return Tensor(values_.data(), DType::kFp32, shape); }
  // The element at `index`, found through the strides.
  static float at(const Tensor& t, const std::vector<std::int64_t>& index) {
    std::int64_t offset = 0;
    for (int d = 0; d < t.rank(); ++d) offset += index[static_cast<std::size_t>(d)] * t.stride(d);
    return t.as<float>()[offset];
  }

  std::array<float, 240> values_{};
};

TEST(Shape, HoldsUpToSixExtents) {
  Shape shape{4, 3, 2};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(shape.back(), 2);
  EXPECT_EQ(to_string(shape), "[4, 3, 2]");
  shape.push_back(0);
  EXPECT_EQ(shape.numel(), 0);
  EXPECT_EQ(to_string(Shape()), "[]");
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ((Shape{1, 2, 3, 4, 5, 6}).numel(), 720);
  EXPECT_NE(error_of([] { Shape{1, 1, 1, 1, 1, 1, 1}; }), "");
  EXPECT_NE(error_of([] { Shape{1, -1}; }), "");
  EXPECT_NE(error_of([] {
              Shape full{1, 1, 1, 1, 1, 1};
              full.push_back(1);
            }),
            "");
}

TEST(Shape, EqualityComparesRankAndExtents) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_NE((Shape{}), (Shape{0}));
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kFp32), 4u);
  EXPECT_EQ(size_of(DType::kBf16), 2u);
  EXPECT_EQ(size_of(DType::kFp64), 8u);
  EXPECT_EQ(size_of(DType::kInt32), 4u);
  EXPECT_EQ(size_of(DType::kInt64), 8u);
  EXPECT_EQ(size_of(DType::kUint8), 1u);
  EXPECT_EQ(name_of(DType::kBf16), "bf16");
  EXPECT_EQ(name_of(DType::kFp32), "fp32");
}

TEST_F(TensorTest, IsRowMajorWhenMade) {
  const Tensor t = tensor({4, 3, 2});
  EXPECT_EQ(t.stride(0), 6);
  EXPECT_EQ(t.stride(1), 2);
  EXPECT_EQ(t.stride(-1), 1);
  EXPECT_EQ(t.size(-1), 2);
  EXPECT_EQ(t.bytes(), 96u);
  EXPECT_EQ(t.extent_bytes(), 96u);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_TRUE(t.present());
  EXPECT_FALSE(Tensor().present());
  EXPECT_EQ(Tensor().extent_bytes(), 0u);
}

TEST_F(TensorTest, ASliceAddressesItsOwnElements) {
  const Tensor t = tensor({4, 5, 6});
  for (int dim = 0; dim < 3; ++dim) {
    for (const int named : {dim, dim - 3}) {
      const Tensor s = t.slice(named, 1, 2);
      EXPECT_EQ(s.size(dim), 2);
      EXPECT_EQ(s.rank(), 3);
      for (std::int64_t i = 0; i < s.size(0); ++i) {
        for (std::int64_t j = 0; j < s.size(1); ++j) {
          for (std::int64_t k = 0; k < s.size(2); ++k) {
            EXPECT_EQ(at(s, {i, j, k}), at(t, {i + (dim == 0), j + (dim == 1), k + (dim == 2)}));
          }
        }
      }
    }
  }
  EXPECT_TRUE(t.slice(0, 1, 2).is_contiguous());
  EXPECT_FALSE(t.slice(1, 1, 2).is_contiguous());
  EXPECT_FALSE(t.slice(2, 1, 2).is_contiguous());
  EXPECT_TRUE(t.slice(0, 2, 1).slice(1, 1, 1).is_contiguous());
}

TEST_F(TensorTest, ExtentReachesFromTheFirstToOnePastTheLastElement) {
  const Tensor t = tensor({4, 5, 6});
  for (const Tensor& s : {t.slice(2, 1, 2), t.slice(1, 2, 3), t.slice(1, 4, 1).slice(2, 5, 1), t.slice(0, 3, 1)}) {
    const std::int64_t last =
        (s.size(0) - 1) * s.stride(0) + (s.size(1) - 1) * s.stride(1) + (s.size(2) - 1) * s.stride(2);
    EXPECT_EQ(s.extent_bytes(), static_cast<std::size_t>(last + 1) * 4);
    EXPECT_LE(s.as<float>() + s.extent_bytes() / 4, values_.data() + 120);
  }
  EXPECT_EQ(t.slice(2, 1, 2).extent_bytes(), (3 * 30 + 4 * 6 + 1 + 1) * 4u);
  EXPECT_EQ(t.slice(1, 2, 0).extent_bytes(), 0u);
  Tensor halves(values_.data(), DType::kBf16, {3, 4});
  EXPECT_EQ(halves.slice(1, 0, 2).extent_bytes(), (2 * 4 + 1 + 1) * 2u);
}

TEST_F(TensorTest, ASliceOutOfRangeIsAnError) {
  const Tensor t = tensor({4, 5});
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(error_of([&] { t.slice(0, 4, 0); }), "");
  EXPECT_NE(error_of([&] { t.slice(0, 4, 1); }), "");
  EXPECT_NE(error_of([&] { t.slice(0, -1, 1); }), "");
  EXPECT_NE(error_of([&] { t.slice(0, 0, -1); }), "");
  EXPECT_NE(error_of([&] { t.slice(0, kMax, kMax); }), "");
  EXPECT_NE(error_of([&] { t.slice(0, 1, kMax); }), "");
  EXPECT_NE(error_of([&] { t.slice(2, 0, 1); }), "");
  EXPECT_NE(error_of([&] { t.slice(-3, 0, 1); }), "");
  EXPECT_FALSE(Tensor(nullptr, DType::kFp32, {4, 5}).slice(0, 2, 1).present());
}

TEST_F(TensorTest, AViewKeepsTheElementsInOrder) {
  const Tensor t = tensor({4, 6});
  const Tensor v = t.view({2, 3, 4});
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(at(v, {i / 12, i / 4 % 3, i % 4}), static_cast<float>(i));
  EXPECT_EQ(t.slice(0, 1, 2).view({12}).as<float>()[0], 6);
  EXPECT_NE(error_of([&] { t.view({5, 5}); }), "");
  EXPECT_NE(error_of([&] { t.slice(1, 0, 3).view({12}); }), "");
}

TEST_F(TensorTest, SplitDimWorksOnStridedTensors) {
  // [T, Q + K] sliced to K, then split into heads.
  const Tensor k = tensor({4, 18}).slice(1, 6, 12);
  const Tensor heads = k.split_dim(1, 3);
  ASSERT_EQ(heads.shape, (Shape{4, 3, 4}));
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t n = 0; n < 3; ++n) {
      for (std::int64_t d = 0; d < 4; ++d) EXPECT_EQ(at(heads, {t, n, d}), static_cast<float>(t * 18 + 6 + n * 4 + d));
    }
  }
  EXPECT_EQ(k.split_dim(-1, 3).shape, heads.shape);
  EXPECT_EQ(k.split_dim(0, 2).shape, (Shape{2, 2, 12}));
  EXPECT_EQ(at(k.split_dim(0, 2), {1, 1, 5}), at(k, {3, 5}));
  EXPECT_EQ(heads.extent_bytes(), k.extent_bytes());
  EXPECT_NE(error_of([&] { k.split_dim(1, 5); }), "");
  EXPECT_NE(error_of([&] { k.split_dim(1, 0); }), "");
  EXPECT_NE(error_of([&] { k.split_dim(2, 1); }), "");
  EXPECT_NE(error_of([&] { k.split_dim(-3, 1); }), "");
  EXPECT_NE(error_of([&] { tensor({1, 1, 1, 1, 1, 2}).split_dim(5, 2); }), "");
}

TEST_F(TensorTest, ABoundedDimIsNeitherCutNorSplit) {
  const std::int32_t rows = 3;
  Tensor t = tensor({8, 6});
  t.bound = &rows;
  EXPECT_EQ(t.slice(1, 2, 3).bound, &rows);
  EXPECT_EQ(t.split_dim(1, 2).bound, &rows);
  EXPECT_EQ(t.view({8, 2, 3}).bound, &rows);
  EXPECT_EQ(t.slice(0, 0, 8).bound, &rows);
  EXPECT_THAT(error_of([&] { t.slice(0, 2, 4); }), HasSubstr("bounded"));
  EXPECT_THAT(error_of([&] { t.split_dim(0, 2); }), HasSubstr("bounded"));
  EXPECT_THAT(error_of([&] { t.view({48}); }), HasSubstr("bounded"));
}

TEST_F(TensorTest, ChecksSayWhatWasExpectedAndWhatCame) {
  const Tensor t = tensor({4, 5});
  check_shape(t, {4, 5}, "op.x");
  check_rank(t, 2, 2, "op.x");
  check_dtype(t, {DType::kBf16, DType::kFp32}, "op.x");
  check_contiguous(t, "op.x");
  check_rows(t.slice(1, 0, 2), "op.x");
  EXPECT_THAT(error_of([&] {
                check_shape(t, {4, 6}, "op.weight");
              }),
              AllOf(HasSubstr("op.weight: expected shape [4, 6], got [4, 5]"), HasSubstr("tensor_test.cpp:")));
  EXPECT_THAT(error_of([&] { check_rank(t, 3, 3, "op.x"); }), HasSubstr("expected 3 dims, got [4, 5]"));
  EXPECT_THAT(error_of([&] {
                check_dtype(t, {DType::kBf16, DType::kInt32}, "op.x");
              }),
              HasSubstr("expected dtype bf16 or int32, got fp32"));
  EXPECT_THAT(error_of([&] { check_contiguous(t.slice(1, 0, 2), "op.x"); }), HasSubstr("op.x"));
  Tensor columns = t;
  columns.strides[1] = 2;
  EXPECT_THAT(error_of([&] { check_rows(columns, "op.x"); }), HasSubstr("got 2"));
  EXPECT_THAT(error_of([&] { check_rows(Tensor(values_.data(), DType::kFp32, {}), "op.x"); }), HasSubstr("no dims"));
  EXPECT_THAT(error_of([&] { check_shape(Tensor(), {4}, "op.bias"); }),
              HasSubstr("op.bias: expected a tensor, got none"));
  EXPECT_EQ(error_of([&] { check_shape(Tensor(nullptr, DType::kFp32, {0, 5}), {0, 5}, "op.x"); }), "");
}

TEST_F(TensorTest, OverlapIsFoundByExtent) {
  const Tensor t = tensor({4, 5});
  check_no_overlap(t.slice(0, 0, 2), "a", t.slice(0, 2, 2), "b");
  check_no_overlap(t.slice(0, 0, 0), "a", t, "b");
  check_no_overlap(Tensor(), "a", t, "b");
  EXPECT_THAT(error_of([&] { check_no_overlap(t, "op.x", t, "op.y"); }), HasSubstr("op.x and op.y"));
  EXPECT_NE(error_of([&] { check_no_overlap(t.slice(0, 0, 3), "a", t.slice(0, 2, 1), "b"); }), "");
}

}  // namespace
}  // namespace megalith

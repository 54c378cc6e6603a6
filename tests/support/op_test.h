// The test of an op: one body for every backend and dtype. The body makes its tensors through the fixture and calls
// run(op), which
//   1. gives outputs NaN and in/out tensors their initial values, runs the op eagerly, and checks that it wrote only
//      bytes declared by access(), and none around its tensors;
//   2. runs it again with all bytes changed that access() does not declare as read, and requires equal results. Then it
//      changes each declared read separately, which must change the results (op_test_reads.cpp);
//   3. restores the start, runs it under capture and replay, and requires equal bits everywhere;
//   4. breaks each of its fields in every form that check() must reject (op_test_refusals.cpp).
// Therefore all memory that an op touches must come from the fixture.
// The results are then compared with an fp64 reference (tests/reference/) at a computed tolerance:
//     class RopeTest : public OpTest {};
//     MEGALITH_OP_TESTS(RopeTest);
//     TEST_P(RopeTest, Forward) {
//       const Tensor x = input({2, 5, 3, 8});
//       const Tensor y = output({2, 5, 3, 8});
//       run(Rope{.x = x, .y = y, ...});
//       expect_close(y, reference::rope(values(x), ...), {.length = 2, .magnitude = ...});
//     }
// With the CUDA backend, each case exists for it too. If no GPU can be used, the case is skipped with the reason.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/error.h"
#include "core/device/stream.h"
#include "core/memory/memory_pool.h"
#include "core/ops/op.h"
#include "core/tensor/bf16.h"
#include "core/tensor/tensor.h"

namespace megalith::test {

using Values = std::vector<double>;

struct OpCase {
  DeviceType device;
  DType dtype;
};
std::vector<OpCase> op_cases();             // the backends of this build times {fp32, bf16}
std::vector<OpCase> op_cases(DType dtype);  // the backends of this build
// Why tests cannot use `device` here; empty when they can.
std::string missing(DeviceType device);
std::string name_of_case(const testing::TestParamInfo<OpCase>& info);

#define MEGALITH_OP_TESTS(Suite)                                                             \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, testing::ValuesIn(::megalith::test::op_cases()), \
                           ::megalith::test::name_of_case)

double unit_roundoff(DType dtype);  // 2^-24 for fp32, 2^-8 for bf16, 2^-53 for fp64

// The relative error allowed to a result stored as `stored` that sums `length` terms in `accumulator` precision:
// 2 u(stored) + (4 + sqrt(length)) u(accumulator). Never tuned.
double tolerance(DType stored, std::int64_t length, DType accumulator = DType::kFp32);

class OpTest : public testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override;

  DType dtype() const { return GetParam().dtype; }
  DeviceType device() const { return GetParam().device; }
  Stream& stream() { return *stream_; }
  std::mt19937_64& random() { return random_; }  // seeded by the test's name

  // Never written by an op. Normally distributed around 0, or as given; rounded to `type`.
  Tensor input(const Shape& shape, double deviation = 1) { return input(shape, dtype(), deviation); }
  Tensor input(const Shape& shape, DType type, double deviation = 1);
  Tensor input(const Shape& shape, DType type, const Values& given);
  Tensor input(const Shape& shape, DType type, std::initializer_list<double> given);  // {3} is a value, not a deviation
  // Read and written by an op: starts from the given values in each run.
  Tensor inout(const Shape& shape, DType type, const Values& given);
  // Starts as NaN (as -1 for integers).
  Tensor output(const Shape& shape) { return output(shape, dtype()); }
  Tensor output(const Shape& shape, DType type);
  // A struct of the device parameter block.
  template <class T>
  T* device_struct(const T& value) {
    const DType type = std::is_same_v<T, std::int32_t> ? DType::kInt32 : DType::kUint8;
    return static_cast<T*>(add_buffer(&value, sizeof(T), type, Use::kInout));
  }
  template <class T>
  T read_struct(const T* address) {
    T value;
    download(&value, address, sizeof(T));
    return value;
  }
  Values normal(std::int64_t count, double deviation = 1);

  // A read that access() declares and that has no influence in this case, and why. It is held to that: one that has is
  // a failure, and so is one that access() does not declare.
  struct Idle {
    const void* read;
    std::string_view because;
    Idle(const Tensor& tensor, std::string_view reason) : read(tensor.data), because(reason) {}
    Idle(const void* address, std::string_view reason) : read(address), because(reason) {}
  };
  using Idles = std::vector<Idle>;

  // Gives the op a workspace if it needs one and has none.
  template <class Op>
  Op ready(const Op& op) {
    if constexpr (HasWorkspace<Op>) {
      if (!op.workspace) return with_workspace(op, device(), [this](std::int64_t bytes) { return workspace(bytes); });
    }
    return op;
  }
  template <class Op>
  void run(const Op& given, const Idles& idle = {}) {
    SCOPED_TRACE(Op::kName);
    const Op op = ready(given);
    Access accesses(Op::kName);
    access(op, accesses);
    run_all(
        accesses, [&op](Stream& stream) { launch(stream, op); }, idle);
    Op broken = op;
    std::vector<Field> list;
    Fields collect(nullptr, &list);
    fields(broken, collect);
    collect.close();
    expect_refusals(list, [&broken] { check(broken); });
  }
  // check(op) throws an Error whose message contains `part`.
  template <class Op>
  void expect_refused(const Op& op, std::string_view part) {
    expect_refusal([&op] { check(op); }, part);
  }
  // The kernel itself throws, or reports a fault on CUDA: the error surfaces at the next synchronization.
  template <class Op>
  void expect_kernel_error(const Op& given, ExitCode code, std::string_view part) {
    const Op op = ready(given);
    expect_error([&op](Stream& stream) { launch(stream, op); }, code, part);
  }

  // The current content in logical order, whatever the strides.
  Values values(const Tensor& tensor);
  // The content equals the tensor's initial content.
  void expect_untouched(const Tensor& tensor);

  struct Comparison {
    std::int64_t length = 1;  // terms summed per element
    Values magnitude = {};    // per element: sum of the magnitudes of its terms; empty: |want|
    DType accumulator = DType::kFp32;
    std::string_view what = "result";
  };
  void expect_close(const Tensor& got, const Values& want, const Comparison& comparison);
  void expect_close(const Tensor& got, const Values& want) { expect_close(got, want, Comparison{}); }

 private:
  static constexpr std::size_t kGuardBytes = 256;
  enum class Use { kInput, kInout };
  struct Buffer {
    std::byte* address;  // device, guards included, as is `initial`
    std::vector<std::byte> initial;
    DType type;
    Use use;
    std::vector<std::byte> changed = {};  // another value in each element and guard; made when it is first needed
  };
  using Contents = std::vector<std::vector<std::byte>>;  // bytes of each buffer; empty: not compared
  using Enqueue = std::function<void(Stream&)>;
  struct Effect {
    Contents before, after;
  };
  struct DeclaredRead {
    std::size_t buffer = 0;
    Tensor view;
  };

  Tensor make(const Shape& shape, DType type, const Values& given, Use use);
  Tensor workspace(std::int64_t bytes);  // the test's workspace, with any content, guarded and never compared
  void* add_buffer(const void* bytes, std::size_t count, DType type, Use use);
  void upload(void* device, const void* host, std::size_t bytes);
  void download(void* host, const void* device, std::size_t bytes);
  Contents initial() const;
  void restore(const Contents& contents);
  Contents snapshot(const Contents& of);
  void run_all(const Access& accesses, const Enqueue& enqueue, const Idles& idle);
  void expect_only_declared_writes(const Access& accesses, const Contents& contents);
  // op_test_reads.cpp
  void expect_declared_reads(const Access& accesses, const Enqueue& enqueue, const Effect& eager, const Idles& idle);
  void expect_no_undeclared_read(const std::vector<DeclaredRead>& reads, const Enqueue& enqueue, const Effect& eager);
  void expect_influence(const DeclaredRead& read, const Contents& touched, const Enqueue& enqueue, const Effect& eager,
                        const Idles& idle);
  bool changes_the_effect(const Contents& start, const Enqueue& enqueue, const Effect& eager);
  std::size_t buffer_of(const void* address) const;
  // `list`: the fields of the op that `check` looks at. op_test_refusals.cpp
  void expect_refusals(const std::vector<Field>& list, const std::function<void()>& check);
  void expect_refusal(const std::function<void()>& call, std::string_view part);
  void expect_error(const Enqueue& enqueue, ExitCode code, std::string_view part);

  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
  Tensor workspace_;
  std::mt19937_64 random_;
};

}  // namespace megalith::test

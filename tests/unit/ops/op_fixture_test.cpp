// The fixture notices ops that misbehave.
#include <gtest/gtest-spi.h>

#include <string>

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

enum class Fault {
  kNone,
  kUndeclaredWrite,
  kUndeclaredRead,
  kNeedlessRead,
  kPastTheEnd,
  kWritesInput,
  kDiffersOnReplay,
  kForgetsAnElement,
  kWrongValue,
  kTakesAnything
};

// y = x, but for its fault.
struct Faulty {
  static constexpr const char* kName = "faulty";
  Tensor x, y, other, needless;  // needless: an input that a correct op never reads
  Fault fault = Fault::kNone;
  int* runs = nullptr;
};

void fields(const Faulty& op, Fields& f) {
  f.in(op.x, "op.x").dtype(DType::kFp32).rank(1);
  if (op.fault == Fault::kNeedlessRead) f.in(op.needless, "op.needless").dtype(DType::kFp32).rank(1);
  f.out(op.y, "op.y").like(op.x);
}

void check(const Faulty& op) {
  Fields list;
  if (op.fault != Fault::kTakesAnything) fields(op, list);
  list.close();
}

void compute(const Faulty& op) {
  const auto n = op.x.numel() - (op.fault == Fault::kForgetsAnElement ? 1 : 0);
  for (std::int64_t i = 0; i < n; ++i) op.y.as<float>()[i] = op.x.as<float>()[i];
  if (op.fault == Fault::kUndeclaredWrite) op.other.as<float>()[0] = 1;
  if (op.fault == Fault::kUndeclaredRead) op.y.as<float>()[0] += op.needless.as<float>()[0];
  if (op.fault == Fault::kPastTheEnd) op.y.as<float>()[n] = 1;
  if (op.fault == Fault::kWritesInput) op.x.as<float>()[0] += 1;
  if (op.fault == Fault::kDiffersOnReplay) op.y.as<float>()[0] = static_cast<float>((*op.runs)++);
  if (op.fault == Fault::kWrongValue) op.y.as<float>()[0] += 1e-5f;
}

// The same by copies and fills.
void run(CudaStream& stream, const Faulty& op) {
  const auto n = static_cast<std::size_t>(op.x.numel() - (op.fault == Fault::kForgetsAnElement ? 1 : 0));
  stream.copy(op.y.data, op.x.data, n * sizeof(float));
  if (op.fault == Fault::kUndeclaredWrite) stream.fill(op.other.data, 1, sizeof(float));
  if (op.fault == Fault::kUndeclaredRead) stream.copy(op.y.data, op.needless.data, sizeof(float));
  if (op.fault == Fault::kPastTheEnd) stream.fill(op.y.as<float>() + n, 1, sizeof(float));
  if (op.fault == Fault::kWritesInput) stream.fill(op.x.data, 1, sizeof(float));
  if (op.fault == Fault::kWrongValue) stream.fill(op.y.data, 1, sizeof(float));
  if (op.fault != Fault::kDiffersOnReplay) return;
  stream.copy(op.y.data, op.runs, sizeof(int));  // first 0, then the result of the preceding run
  stream.copy(op.runs, op.x.as<float>() + 1, sizeof(int));
}

class OpFixtureTest : public OpTest {
 protected:
  enum class Declared { kNothing, kNeedless, kNeeded, kNeverDeclared };

  std::string messages(Fault fault, Declared declared = Declared::kNothing) {
    int runs = 0;
    const Tensor x = input({5}, DType::kFp32, {1, 2, 3, 4, 5}), y = output({5}, DType::kFp32);
    const Faulty op{.x = x,
                    .y = y,
                    .other = output({5}, DType::kFp32),
                    .needless = input({3}, DType::kFp32),
                    .fault = fault,
                    .runs = &runs};
    Idles idle;
    if (declared == Declared::kNeedless) idle.emplace_back(op.needless, "none looks at it");
    if (declared == Declared::kNeeded) idle.emplace_back(x, "of a mistake");
    if (declared == Declared::kNeverDeclared) idle.emplace_back(y, "of another mistake");
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      run(op, idle);
      expect_close(y, {1, 2, 3, 4, 5});
    }
    std::string all;
    for (int i = 0; i < failures.size(); ++i) all += failures.GetTestPartResult(i).message();
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, OpFixtureTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

TEST_P(OpFixtureTest, NoticesFaults) {
  const auto expect_message = [this](Fault fault, const char* part, Declared declared = Declared::kNothing) {
    const std::string text = messages(fault, declared);
    EXPECT_NE(text.find(part), std::string::npos) << "wanted: " << part << "\ngot: " << text;
  };
  EXPECT_EQ(messages(Fault::kNone), "");
  expect_message(Fault::kUndeclaredWrite, "is not in access()");
  expect_message(Fault::kUndeclaredRead,
                 "reads what access() does not declare as read: tensor 11 of this test, fp32, 12 bytes");
  expect_message(Fault::kNeedlessRead, "[3] is declared as read by access(), but has no influence");
  EXPECT_EQ(messages(Fault::kNeedlessRead, Declared::kNeedless), "");
  expect_message(Fault::kNone, "has an influence, but is said to have none: of a mistake", Declared::kNeeded);
  expect_message(Fault::kNone, "declares no read that could be without influence", Declared::kNeverDeclared);
  expect_message(Fault::kPastTheEnd, "byte 20 of a tensor of 20 bytes was written");
  expect_message(Fault::kWritesInput, "an input was written");
  expect_message(Fault::kDiffersOnReplay, "a replay differs from the eager run");
  expect_message(Fault::kForgetsAnElement, "1 of 5 differ; worst at 4: got -nan");
  expect_message(Fault::kWrongValue, "1 of 5 differ; worst at 0");
  for (const char* what : {"missing", "another dtype", "6 dims", "longer dims", "stride 2 in the last dim", "a bound"})
    expect_message(Fault::kTakesAnything, what);
  expect_message(Fault::kTakesAnything, "accepted; expected an error with \"op.x\"");
  expect_message(Fault::kTakesAnything, "accepted; expected an error with \"op.y\"");
}

}  // namespace
}  // namespace megalith::test

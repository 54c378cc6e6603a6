#include "tests/style/function_lines.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace megalith::style {
namespace {

std::vector<std::string> found(const std::string& text) {
  const auto functions = functions_of(text);
  if (!functions) return {"unbalanced"};
  std::vector<std::string> out;
  for (const Function& f : *functions)
    out.push_back(f.name + " " + std::to_string(f.line) + "+" + std::to_string(f.lines));
  return out;
}

TEST(FunctionLines, CountFromOneBraceToTheOther) {
  EXPECT_THAT(
      found("int f(int a,\n      int b) {\n  if (a) {\n    b = {};\n  }\n  return b;\n}\nint g() { return 1; }\n"),
      ElementsAre("f 2+6", "g 8+1"));
  EXPECT_THAT(found("int f(int);\nextern int a;\n#define F(x) \\\n  void x() {}\nint a = 1;\n"), IsEmpty());
}

TEST(FunctionLines, KnowQualifiersOperatorsTemplatesAndAttributes) {
  EXPECT_THAT(found("auto A::f(int a) const noexcept -> std::vector<int> {\n}\n"), ElementsAre("f 1+2"));
  EXPECT_THAT(found("bool operator==(A a, A b) {\n}\nint A::operator()(int a) override {\n}\n"),
              ElementsAre("= 1+2", "operator 3+2"));
  EXPECT_THAT(found("template <class T = int, int kN = 4>\n  requires(kN == 4)\nT f(T a) {\n}\n"),
              ElementsAre("f 3+2"));
  EXPECT_THAT(found("template class A<int>;\ntemplate <>\nint f<int>(int) {\n}\n"), ElementsAre("> 3+2"));
  EXPECT_THAT(found("struct stat f(struct stat s) {\n}\nstatic struct stat A::g() const {\n}\n"),
              ElementsAre("f 1+2", "g 3+2"));
  EXPECT_THAT(found("__global__ void __launch_bounds__(kMost, kMost / 2) f_kernel(int* x) {\n}\n"),
              ElementsAre("f_kernel 1+2"));
}

TEST(FunctionLines, DoNotCountInitialisersOfConstructors) {
  EXPECT_THAT(found("A::A(int a)\n    : a_(a),\n      b_{a, {1}},\n      c_([&] {\n        return a;\n      }),\n"
                    "      d_{} {\n  b_ = {};\n}\nA::A() : a_{} {}\nA::~A() {\n}\n"),
              ElementsAre("A 7+3", "A 10+1", "A 11+2"));
  EXPECT_THAT(found("A::A() noexcept : a_(1) {\n}\n"), ElementsAre("A 1+2"));
}

TEST(FunctionLines, LeaveLambdasAndClassesToTheirFunction) {
  EXPECT_THAT(found("void f() {\n  const auto g = [&](int a) {\n    return a;\n  };\n  struct B {\n    void h() {\n"
                    "    }\n  };\n}\n"),
              ElementsAre("f 1+9"));
  EXPECT_THAT(found("const auto kF = [](int a) {\n  return a;\n};\nconst int kA = g([] {\n});\n"), IsEmpty());
}

TEST(FunctionLines, LookIntoNamespacesAndClasses) {
  EXPECT_THAT(found("namespace a::b {\nnamespace {\nstruct alignas(16) A final : B<int> {\n public:\n  A() : a_{1} {}\n"
                    "  int f() const {\n    return 1;\n  }\n  int g(int = 1);\n\n private:\n  int a_{2}, b_ = 3;\n"
                    "  enum class E { kA, kB };\n};\n}\n}\nextern \"C\" {\nint h() {\n}\n}\n"),
              ElementsAre("A 5+1", "f 6+3", "h 18+2"));
}

TEST(FunctionLines, DoNotCountValues) {
  EXPECT_THAT(found("constexpr int kA[] = {\n    1,\n};\nint b{\n    1};\nstd::array<int, 2> c = {f(1), 2};\n"
                    "enum E : int {\n  kB\n};\ntemplate <class T>\nconcept C = requires(T t) {\n  t.f();\n};\n"),
              IsEmpty());
}

TEST(FunctionLines, SkipBracesOfLiteralsAndComments) {
  EXPECT_THAT(found("void f() {\n  a = R\"x(\n}\n)\" {)x\";\n  b = \"\\\"}\";  // }\n  c = '}' + 1'000 + '\\'';\n"
                    "  /* }\n  } */\n#if A  // {\n#else\n#endif\n}\n"),
              ElementsAre("f 1+12"));
  EXPECT_THAT(found("const char* const kText = R\"(\nvoid f() {\n)\";\nvoid g() {\n}\n"), ElementsAre("g 4+2"));
}

TEST(FunctionLines, CountTests) {
  EXPECT_THAT(found("TEST(A, B) {\n  a();\n}\n\nTEST_P(A, B) {\n}\nINSTANTIATE_TEST_SUITE_P(A, B, Values(1, 2));\n"
                    "TEST_F(A, C) {\n}\n"),
              ElementsAre("TEST 1+3", "TEST_P 5+2", "TEST_F 8+2"));
}

TEST(FunctionLines, AreUnknownWhereBracesDoNotBalance) {
  EXPECT_THAT(found("#if A\nvoid f(int) {\n#else\nvoid f() {\n#endif\n}\n"), ElementsAre("unbalanced"));
  EXPECT_THAT(found("}\n"), ElementsAre("unbalanced"));
}

}  // namespace
}  // namespace megalith::style

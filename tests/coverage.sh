#!/usr/bin/env bash
# Measures the coverage of the unit tests by clang's source-based coverage. It builds the CPU tree with clang, runs the
# unit tests, and fails if tests/coverage_report.py finds less than required. Called by tests/soak.sh; needs
# apps/install_dependencies.sh --soak.
#   tests/coverage.sh [TEST...]     default: all programs of unit tests; TEST is one, such as unit_base
# Environment: JOBS, the number of compilers at once; CLANG, the version (default 16). The report is in
# build/coverage/report, a page for each file in build/coverage/html.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${CLANG:-16}
build=build/coverage
for tool in clang++ llvm-profdata llvm-cov; do
  command -v "$tool-$version" >/dev/null ||
    { echo "coverage: expected $tool-$version, found none; run apps/install_dependencies.sh --soak" >&2; exit 1; }
done
# Settings that mpirun requires in containers and on small machines.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash OMPI_MCA_rmaps_base_oversubscribe=1

mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="clang++-$version" -DMEGALITH_CUDA=OFF -DMEGALITH_WERROR=OFF \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -w -fprofile-instr-generate -fcoverage-mapping" \
  >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
tests=("$@")
[ ${#tests[@]} -gt 0 ] || for folder in tests/unit/*/CMakeLists.txt; do
  tests+=($(sed -n 's/^megalith_test(\(unit_[a-z_]*\).*/\1/p' "$folder"))
done
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target "${tests[@]}"

rm -rf "$build/profiles" && mkdir -p "$build/profiles"
failed=()
for test in "${tests[@]}"; do
  # %m: one file for each program, to which all its processes add.
  (cd "$build" && LLVM_PROFILE_FILE="$PWD/profiles/%m.profraw" "tests/$test" --gtest_brief=1) ||
    failed+=("$test")
done
[ ${#failed[@]} -eq 0 ] || { echo "coverage: failed: ${failed[*]}" >&2; exit 1; }

"llvm-profdata-$version" merge -sparse "$build"/profiles/*.profraw -o "$build/all.profdata"
programs=()
for program in "${tests[@]/#/$build/tests/}" "$build"/apps/{prepare,plan,report,generate}; do
  [ ! -x "$program" ] || programs+=(-object "$program")
done
sources=(-compilation-dir="$PWD" -ignore-filename-regex='(/usr/|/tests/|/build/|/no_cuda/).*' -instr-profile="$build/all.profdata")
"llvm-cov-$version" export -skip-functions "${sources[@]}" "${programs[@]}" >"$build/coverage.json"
"llvm-cov-$version" show -format=html -output-dir="$build/html" -show-branches=count "${sources[@]}" "${programs[@]}" \
  >/dev/null
python3 tests/coverage_report.py "$build/coverage.json" | tee "$build/report"

#!/usr/bin/env bash
# Installs missing packages, builds, and runs tests; ends with the number of passed ones, and with a status.
#   tests/run.sh                     the quick tier, as in CI: each test in the build where it can fail. Release (with
#                                    CUDA if nvcc, cuDNN and NCCL exist), ASAN+UBSAN with a few fuzz inputs, TSAN
#   tests/run.sh --full              the full tier: every test in every build that it suits, 50,000 fuzz inputs a target
#   tests/run.sh --preset cpu-tsan   the full tier's tests of one preset (repeatable)
#   tests/run.sh --filter PATTERN    only the GoogleTest cases that match, such as '*LowRank*'
# Environment: JOBS, the number of compilers at once (default: the number of cores); 1.5 times as many tests run.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; }

presets=()
tier=quick
while [ $# -gt 0 ]; do
  case $1 in
    --full) tier=full ;;
    --preset) presets+=("${2:?--preset needs a name}"); tier=full; shift ;;
    --filter) export GTEST_FILTER=${2:?--filter needs a pattern of GoogleTest}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/run.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
jobs=${JOBS:-$(nproc)}

# Settings that mpirun requires in containers and on small machines.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash OMPI_MCA_rmaps_base_oversubscribe=1

stages=()
stage() {  # stage NAME COMMAND...: runs it, keeps its time, and ends the script if it fails
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name"
  "$@" || status=$?
  stages+=("$(printf '%-32s %5d s' "$name" $((SECONDS - start)))")
  if [ "$status" -ne 0 ]; then
    print_stages
    echo "tests/run.sh: failed in: $name (status $status)" >&2
    exit "$status"
  fi
}
print_stages() { printf 'time of each stage:\n'; printf '  %s\n' "${stages[@]}" "$(printf '%-32s %5d s' total $SECONDS)"; }

# Kernels that no GPU here will run are compiled, and no more.
unoptimized=OFF
[ $tier != quick ] || nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null || unoptimized=ON
configure() {
  cmake --preset "$1" -DMEGALITH_TIER=$tier -DMEGALITH_CUDA_UNOPTIMIZED=$unoptimized "${@:2}" >build/"$1".configure.log 2>&1
}
choose_presets() {
  [ ${#presets[@]} -eq 0 ] || return 0
  local cuda=cuda-quick
  [ $tier = quick ] || cuda=cuda-release
  configure $cuda -DMEGALITH_CUDA=AUTO || { cat build/$cuda.configure.log; return 1; }
  if ! grep 'CUDA backend: off' build/$cuda.configure.log; then
    # A build with CUDA runs the tests of the CPU too.
    presets=($cuda)
    [ $tier = quick ] || presets=(cpu-release $cuda)
  else
    rm -rf build/$cuda
    echo "skipped: the CUDA backend is neither compiled nor tested"
    presets=(cpu-release)
  fi
  presets+=(cpu-asan-ubsan cpu-tsan)
}
build() {
  configure "$1" || { cat build/"$1".configure.log; return 1; }
  rm -rf "build/$1/tests/results"
  cmake --build --preset "$1" -j "$jobs" -- -k 0
}

# One suite over the builds.
suite=build/suite
run_suite() {
  rm -rf "$suite" && mkdir -p "$suite"
  for preset in "${presets[@]}"; do
    echo "subdirs(\"$PWD/build/$preset\")" >>"$suite/CTestTestfile.cmake"
    mkdir -p "build/$preset/tests/results"
  done
  local only=() status=0
  [ -z "${GTEST_FILTER:-}" ] || only=(-L '^(unit|threads|distributed|style)$' -R '\.[0-9]+$')
  # Programs that start others sleep half of the time. Those with time limits count as two.
  ctest --test-dir "$suite" -j $((jobs + jobs / 2)) --output-on-failure --no-tests=error "${only[@]}" >"$suite/ctest.log" 2>&1 || status=$?
  grep -vE '^( *Start |Test project )' "$suite/ctest.log"
  return $status
}
# Whether a program that ctest calls failed has no case that says so: it died, or failed at its end.
failed_as_one() {
  local preset=cpu-release name=${1##*/}
  case $1 in
    asan-ubsan/*) preset=cpu-asan-ubsan ;;
    tsan/*) preset=cpu-tsan ;;
    gpu/*) preset=cuda-release ;;
    *) [ ! -d build/cuda-quick ] || [[ " ${presets[*]} " != *" cuda-quick "* ]] || preset=cuda-quick ;;
  esac
  ! grep -q '<failure' "build/$preset/tests/results/$name.xml" 2>/dev/null
}
# GoogleTest's cases, from its files of results; ctest's other tests; programs that failed without a failed case.
count_tests() {
  local results=()
  for preset in "${presets[@]}"; do results+=("build/$preset"/tests/results/*.xml); done
  { cat "${results[@]}" 2>/dev/null || true; } | awk '
    /<testcase / { bad = 0; if (/status="run"/) { if (/result="skipped"/) ++skipped; else ++passed } }
    /<failure/ && !bad { bad = 1; ++failed; --passed }
    END { print passed + 0, failed + 0, skipped + 0 }' >"$suite/cases"
  local passed failed skipped name outcome
  read -r passed failed skipped <"$suite/cases"
  while read -r name outcome; do
    if [[ $name =~ \.[0-9]+$ ]] && [[ $outcome =~ ^(Passed|Skipped|Failed)$ ]]; then
      if [ "$outcome" = Failed ] && failed_as_one "$name"; then failed=$((failed + 1)); fi
    else
      case $outcome in
        Passed) passed=$((passed + 1)) ;;
        Skipped) skipped=$((skipped + 1)) ;;
        *) failed=$((failed + 1)) ;;
      esac
    fi
  done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) [ .*]*(Passed|Failed|Skipped|Not Run|Timeout|Exception|Subprocess [a-z]+).*/\1 \2/p' "$suite/ctest.log")
  echo "$passed passed, $failed failed, $skipped skipped"
}

mkdir -p build
stage "install packages" apps/install_dependencies.sh --tests
stage "configure" choose_presets
for preset in "${presets[@]}"; do stage "build $preset" build "$preset"; done
[ $tier = quick ] || [[ " ${presets[*]} " != *" cpu-asan-ubsan "* ]] ||
  stage "fuzz, 50000 inputs each" tests/fuzz/run.sh 50000
status=0
start=$SECONDS
echo "== all tests"
run_suite || status=$?
stages+=("$(printf '%-32s %5d s' "all tests" $((SECONDS - start)))")
print_stages
count_tests
exit "$status"

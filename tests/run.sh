#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. Ends with ctest's summary over all builds, and with its status.
#   tests/run.sh                     style, release, CUDA where nvcc is, ASAN+UBSAN and TSAN, fuzz: what CI runs
#   tests/run.sh --quick             the release build alone
#   tests/run.sh --preset cpu-tsan   one preset (repeatable)
#   tests/run.sh --filter REGEX      only the tests whose name matches
# Environment: JOBS, how many compilers and tests run at once (default: the number of cores).
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }

presets=()
filter=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) presets+=(cpu-release) ;;
    --preset) presets+=("${2:?--preset needs a name}"); shift ;;
    --filter) filter=(-R "${2:?--filter needs a regular expression}"); shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/run.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
fuzzes=false
[ ${#presets[@]} -gt 0 ] || [ ${#filter[@]} -gt 0 ] || fuzzes=true
if_cuda=""  # the preset that is left out where CUDA is not installed
[ ${#presets[@]} -gt 0 ] || { presets=(cpu-release cuda-release cpu-asan-ubsan cpu-tsan) && if_cuda=cuda-release; }
jobs=${JOBS:-$(nproc)}

# What mpirun asks for in containers and on small machines.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

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

configure() {
  local options=()
  [ "$1" != "$if_cuda" ] || options=(-DMEGALITH_CUDA=AUTO)
  cmake --preset "$1" "${options[@]}" >build/"$1".configure.log 2>&1 || { cat build/"$1".configure.log; return 1; }
}
built=()
build() {
  configure "$1" || return
  if [ "$1" = "$if_cuda" ] && grep 'CUDA backend: off' build/"$1".configure.log; then
    echo "skipped: the CUDA backend is neither compiled nor tested"
    return
  fi
  built+=("$1")
  cmake --build --preset "$1" -j "$jobs" -- -k 0
}

# One suite over the builds, so that the closing summary counts every test of every build. `twin`: a test of a build
# with CUDA that runs in a build without it too.
suite=build/suite
run_suite() {
  rm -rf "$suite" && mkdir -p "$suite"
  for preset in "${built[@]}"; do echo "subdirs(\"$PWD/build/$preset\")"; done >"$suite/CTestTestfile.cmake"
  ctest --test-dir "$suite" -j "$jobs" --output-on-failure --no-tests=error -LE '^twin$' "${filter[@]}" 2>&1 | tee "$suite/ctest.log"
}

mkdir -p build
stage "install packages" apps/install_dependencies.sh --tests
for preset in "${presets[@]}"; do stage "build $preset" build "$preset"; done
[ $fuzzes = false ] || stage "fuzz, 50000 inputs each" tests/fuzz/run.sh 50000
status=0
start=$SECONDS
run_suite || status=$?
stages+=("$(printf '%-32s %5d s' "all tests" $((SECONDS - start)))")
print_stages
# The closing lines of the run above once more, so that they end the log.
sed -n '/tests passed, /,$p' "$suite/ctest.log"
exit "$status"

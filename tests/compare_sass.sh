#!/usr/bin/env bash
# Compares the machine code of the kernels of two builds: SASS as text with its encoding, registers, stack and shared
# memory of each kernel. Names are demangled; file names, hashes of anonymous namespaces and debug lines do not count.
#   tests/compare_sass.sh BEFORE AFTER [SED]    each a file (object, program) or a folder with objects of .cu files
# Kernels are paired by name, in any file; SED is a script for sed that renames those of BEFORE, such as
# 's/OldTraits/NewTraits/'. Kernels left over on both sides with equal code count as renamed. Exit code 1: a kernel
# differs, or is on one side only. Needs c++filt, cuobjdump and nvdisasm, by PATH or in CUDA_HOME/bin.
set -uo pipefail
before=${1:?the object or folder before} after=${2:?the object or folder after} sed=${3:-}
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
for tool in cuobjdump nvdisasm c++filt python3; do
  command -v "$tool" >/dev/null || { echo "error: $tool: not found in PATH or CUDA_HOME/bin; install it" >&2; exit 2; }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

dump() {  # dump OBJECT_OR_FOLDER TO: SASS and resource usage of all kernels
  local files=("$1")
  [ ! -d "$1" ] || mapfile -t files < <(find "$1" -name '*.cu.o' | sort)
  for file in "${files[@]}"; do
    for what in -sass -res-usage; do
      cuobjdump $what "$file" || { echo "error: $file: cuobjdump failed" >&2; return 1; }
    done
  done | c++filt >"$2"
}
dump "$before" "$scratch/before" && dump "$after" "$scratch/after" || exit 2

python3 - "$scratch/before" "$scratch/after" "$sed" <<'PYTHON'
import collections, re, subprocess, sys


def kernels(path):
    """Of each (architecture, name): the code of all kernels of this name, as tuples of lines."""
    codes, usage = [], collections.defaultdict(collections.deque)
    arch, name, code = "", "", None
    for line in open(path, encoding="utf-8", errors="replace"):
        line = " ".join(re.sub(r"_(GLOBAL__N__|INTERNAL_)\w+", "(anonymous namespace)", line).split())
        if match := re.match(r"code for (\w+)", line):
            arch = match[1]
        elif match := re.match(r"Function : (.*)", line):
            code = []
            codes.append((arch, match[1], code))
        elif match := re.match(r"Function (.*):$", line):
            name, code = match[1], None
        elif match := re.match(r"REG:\d+ STACK:\d+ SHARED:\d+ LOCAL:\d+", line):
            usage[name].append(match[0])
        elif code is not None and line.startswith(("/*", "@")):
            code.append(line)
    found = collections.defaultdict(list)
    for arch, name, code in codes:
        found[arch, name].append((*code, usage[name].popleft()))
    return {key: sorted(all_of_name) for key, all_of_name in found.items()}


def renamed(kernels, script):
    names = sorted(kernels)
    text = "\n".join(name for _, name in names)
    text = subprocess.run(["sed", "-E", script], input=text, capture_output=True, text=True, check=True).stdout
    result = collections.defaultdict(list)
    for key, name in zip(names, text.split("\n"), strict=True):
        result[key[0], name] += kernels[key]
    return result


def short(key):
    return f"{key[0]} " + re.sub(r"megalith::|cuda::|\(anonymous namespace\)::|^void ", "", key[1])


before, after = kernels(sys.argv[1]), kernels(sys.argv[2])
if sys.argv[3]:
    before = renamed(before, sys.argv[3])
count, rows = collections.Counter(), []


def row(result, key, code, note=""):
    count[result] += len(code)
    rows.append((short(key), result, sum(len(c) - 1 for c in code), note))


both = before.keys() & after.keys()
for key in both:
    if before[key] == after[key]:
        row("same", key, after[key])
        continue
    pairs = [pair for a, b in zip(before[key], after[key]) for pair in zip(a, b) if pair[0] != pair[1]]
    row("differs", key, after[key], ("\n    %s\n    %s" % pairs[0]) if pairs else "another number of lines")
by_code = collections.defaultdict(list)
for key in sorted(before.keys() - both):
    by_code[key[0], tuple(before[key])].append(key)
for key in sorted(after.keys() - both):
    old = by_code.get((key[0], tuple(after[key])))
    row("renamed" if old else "only after", key, after[key], "was " + short(old.pop(0)) if old else "")
for key in sorted(key for keys in by_code.values() for key in keys):
    row("only before", key, before[key])

print(f"{'result':<12} {'lines':>6} kernel")
for name, result, lines, note in sorted(rows):
    print(f"{result:<12} {lines:>6} {name} {note}".rstrip())
same = count["same"] + count["renamed"]
other = count["differs"] + count["only before"] + count["only after"]
print(f"{same} the same ({count['renamed']} of them renamed), {count['differs']} differ, "
      f"{count['only before']} only before, {count['only after']} only after")
sys.exit(0 if same and not other else 1)
PYTHON

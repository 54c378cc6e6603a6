# shellcheck shell=bash
# Shared code of the scripts in this folder: mpirun as root, and a folder $work that is removed at the end.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# median FILE KEY LINES: median of a number in the metrics of train, over the output of tail -n LINES.
median() {
  sed -n "s/.*\"$2\": *\([0-9.e+]*\).*/\1/p" "$1" | tail -n "$3" | sort -g | awk '{v[NR]=$1} END {printf "%s", v[int((NR+1)/2)]}'
}

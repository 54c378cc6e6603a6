# For the scripts beside it. median FILE KEY LINES: of a number in the metrics of train, over what tail -n LINES leaves.
median() {
  sed -n "s/.*\"$2\": *\([0-9.e+]*\).*/\1/p" "$1" | tail -n "$3" | sort -g | awk '{v[NR]=$1} END {printf "%s", v[int((NR+1)/2)]}'
}

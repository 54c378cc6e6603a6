#!/usr/bin/env bash
# mpirun for a terminal: the first Ctrl-C (or SIGTERM, or SIGHUP of a terminal that goes) lets all ranks of train end the
# step under way and save, with exit code 75; the second ends them at once; the third kills mpirun. Open MPI's mpirun
# alone kills its ranks two seconds after a Ctrl-C, saved or not, and ends with 1.
#   apps/launch.sh -np 8 build/cpu-release/apps/train ...     all of it goes to mpirun (MPIRUN names another)
set -uo pipefail
set -m  # mpirun gets a process group of its own, so that the terminal's Ctrl-C reaches this script alone
[ ! -t 0 ] || exec </dev/null  # of which it may not read

requests=0 mpirun=
# Before mpirun has started what it hands signals to, it loses them: where the kernel lists children, waits for that.
wait_for_children() {
  [ -r "/proc/$$/task/$$/children" ] || return 0
  local tries
  for tries in {1..500}; do
    [ -z "$(cat /proc/"$mpirun"/task/*/children)" ] && kill -0 "$mpirun" || return 0
    sleep 0.02
  done
}
ask() {
  requests=$((requests + 1))
  [ -n "$mpirun" ] || return 0  # asked below
  if [ $requests -le 2 ]; then
    wait_for_children
    kill -USR1 "$mpirun"  # which hands it to the ranks
  else
    kill -KILL "$mpirun"  # the ranks end when they notice
  fi
} 2>/dev/null

trap ask INT TERM HUP
"${MPIRUN:-mpirun}" "$@" &
mpirun=$!
if [ $requests -gt 0 ]; then
  requests=0
  ask
fi
before=-1 status=0
while [ $before -ne $requests ]; do  # a wait that a signal ends says nothing of mpirun
  before=$requests
  wait "$mpirun"
  status=$?
done
exit $status

#!/usr/bin/env bash
# mpirun with save on Ctrl-C. The first Ctrl-C (or SIGTERM, SIGUSR1, SIGUSR2) lets all ranks of train finish the step,
# save, and end with exit code 75. The second ends them at once; the third kills mpirun. SIGHUP of a closed terminal,
# SIGXCPU, SIGALRM, SIGVTALRM and SIGPWR also save, but never count as a second request. `nohup apps/launch.sh` ignores
# SIGHUP. Open MPI's mpirun kills its ranks two seconds after a Ctrl-C, saved or not, and ends with exit code 1.
#   apps/launch.sh -np 8 build/cpu-release/apps/train ...     all arguments go to mpirun (or to $MPIRUN)
# The first line on standard error is the command that it runs, quoted for a shell.
# If all ranks were on this host and mpirun has not ended 10 s after the last of them, launch.sh kills mpirun. The exit
# code is then the first of the ranks' exit codes other than 0. The same holds if mpirun crashes after its ranks failed,
# as Open MPI 4.1.4 with PMIx 4.2.2 may.
set -uo pipefail
set -m  # a separate process group for mpirun, so that Ctrl-C reaches only this script
[ ! -t 0 ] || exec </dev/null  # mpirun may not read from the terminal

# With PMIx, mpirun and its ranks share memory with a lock. If a rank is killed while it holds the lock at its start,
# mpirun waits forever. Messages need no lock.
export PMIX_MCA_gds="${PMIX_MCA_gds:-hash}"
# File that each rank of train appends its exit code to.
MEGALITH_EXIT_CODES=$(mktemp "${TMPDIR:-/tmp}/megalith-exit-codes.XXXXXXXX" 2>/dev/null) || MEGALITH_EXIT_CODES=
export MEGALITH_EXIT_CODES
trap '[ -z "$MEGALITH_EXIT_CODES" ] || rm -f "$MEGALITH_EXIT_CODES"' EXIT

requests=0 signals=0 mpirun='' repeated=''
readonly ended=42  # exit code of the watcher that ended mpirun

# Prints the process ids of mpirun's children, if the kernel lists them.
children() {
  local file list
  for file in /proc/"$mpirun"/task/*/children; do
    read -r list <"$file"
    [ -z "$list" ] || printf '%s ' $list
  done
} 2>/dev/null

# Waits until mpirun has children, if the kernel lists them: mpirun loses signals that arrive earlier.
wait_for_children() {
  [ -r "/proc/$$/task/$$/children" ] || return 0
  for _ in {1..500}; do
    [ -z "$(children)" ] && kill -0 "$mpirun" || return 0
    sleep 0.02
  done
}
forward_signal() {
  wait_for_children
  kill "-$1" "$mpirun"  # mpirun forwards it to the ranks
} 2>/dev/null
ask() {
  signals=$((signals + 1)) requests=$((requests + 1))
  [ -n "$mpirun" ] || return 0  # requested below
  if [ $requests -le 2 ]; then
    forward_signal USR1
  else
    kill -KILL "$mpirun" 2>/dev/null  # the ranks then end
  fi
}
ask_once() {  # sends the signal that mpirun forwards and that ranks never count as a second request
  signals=$((signals + 1)) repeated=yes
  [ -z "$mpirun" ] || forward_signal ALRM
}

# Prints "STATE EXIT" of a process: state Z has ended; EXIT is the status of waitpid.
state_of() {
  local line fields
  read -r line <"/proc/$1/stat" || return
  read -r -a fields <<<"${line##*) }"
  printf '%s %s' "${fields[0]}" "${fields[49]:-0}"
} 2>/dev/null

# Checks that mpirun is still a child of this script: its id may be that of another process by now.
runs() {
  local line fields
  read -r line <"/proc/$mpirun/stat" || return 1
  read -r -a fields <<<"${line##*) }"
  [ "${fields[1]}" = "$$" ]
} 2>/dev/null

# Sets `here` if this process is a rank: to yes if all ranks of its job are on this host, else to no.
look_at_rank() {
  local variable world='' local_ranks=''
  while IFS= read -r -d '' variable; do
    case $variable in
      OMPI_COMM_WORLD_SIZE=*) world=${variable#*=} ;;
      OMPI_COMM_WORLD_LOCAL_SIZE=*) local_ranks=${variable#*=} ;;
    esac
  done <"/proc/$1/environ"
  [ -z "$world" ] || { [ "$world" = "$local_ranks" ] && here=yes || here=no; }
} 2>/dev/null

# Kills mpirun 10 s after its last rank if all ranks are on this host, also if no child was seen alive and mpirun has
# not waited for ended children.
watch() {
  local child alive dead looks=0 gone=0 here=''
  while runs; do
    alive=0 dead=0
    for child in $(children); do
      case $(state_of "$child") in
        '' | [ZX]*) dead=1 ;;
        *)
          alive=1
          [ -n "$here" ] || look_at_rank "$child"
          ;;
      esac
    done
    if [ $alive -eq 0 ] && [ "$here" != no ] && [ "$here$dead" != 0 ]; then gone=$((gone + 1)); else gone=0; fi
    if [ $gone -gt 20 ]; then
      note_codes
      echo "apps/launch.sh: mpirun was killed, as it did not end within 10 s of its last rank" >&2
      kill -KILL "$mpirun" 2>/dev/null
      exit $ended
    fi
    looks=$((looks + 1))
    if [ -z "$here" ] && [ $gone -eq 0 ] && [ $looks -lt 200 ]; then sleep 0.05; else sleep 0.5; fi
  done
}

# Adds the exit codes of ranks that mpirun has not waited for.
note_codes() {
  local child status
  [ -n "$MEGALITH_EXIT_CODES" ] || return 0
  for child in $(children); do
    status=$(state_of "$child")
    status=${status#* }
    [ "${status:-0}" -eq 0 ] ||
      echo $(((status & 127) > 0 ? 128 + (status & 127) : status >> 8)) >>"$MEGALITH_EXIT_CODES"
  done
}

# Prints the first code other than 0; without any code that of SIGKILL.
code_of_ranks() {
  local code all=0
  [ -z "$MEGALITH_EXIT_CODES" ] || while read -r code; do
    all=1
    [ $((10#$code)) -eq 0 ] || { echo $((10#$code)); return; }
  done <"$MEGALITH_EXIT_CODES"
  [ $all -eq 1 ] && echo 0 || echo 137
}

{  # one block, which bash reads as a whole, so that the file may change during a run
  trap ask INT TERM USR1 USR2
  trap ask_once HUP XCPU ALRM VTALRM PWR
  printf 'apps/launch.sh: runs PMIX_MCA_gds=%q%s\n' "$PMIX_MCA_gds" "$(printf ' %q' "${MPIRUN:-mpirun}" "$@")" >&2
  "${MPIRUN:-mpirun}" "$@" &
  mpirun=$!
  if [ $requests -gt 0 ]; then
    requests=0
    ask
  elif [ -n "$repeated" ]; then
    ask_once
  fi
  watch &
  watcher=$!
  before=-1 status=0
  while [ $before -ne $signals ]; do  # a signal may have ended the wait
    before=$signals
    wait -f "$mpirun" 2>/dev/null
    status=$?
  done
  if [ $status -gt 128 ]; then  # killed or only stopped; the watcher ends after mpirun
    before=-1
    while [ $before -ne $signals ]; do  # as above; another process may have the watcher's id by now
      before=$signals
      wait -f "$watcher" 2>/dev/null
      watched=$?
    done
    wait "$mpirun" 2>/dev/null
    status=$?
    [ $watched -ne $ended ] || status=$(code_of_ranks)
    if [ $status -eq 139 ]; then  # SIGSEGV of mpirun or of a rank; a code that another rank recorded is better
      recorded=$(code_of_ranks)
      [ "$recorded" -eq 0 ] || [ "$recorded" -ge 128 ] || status=$recorded
    fi
  else
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null  # otherwise the shell reports its end
  fi
  exit $status
}

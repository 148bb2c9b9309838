# Runs the functions step_NAME of the script that sources this, one after the other, stops at the first that fails, and
# prints how many seconds each took. Sourced by .ci/run and .ci/nightly; bash.
#
# run_steps [--keep-going] <step>...: at the end tools/report_skips.py says what was skipped and why; a reason that
# .ci/allowed-skips does not list is a failure.

# Each step leaves the results of its tests here as STEP-NAME.xml, and parts that it left out as lines of `steps`.
reports=$PWD/build/ci-reports
report() { echo "$reports/$step-$1.xml"; }
skipped() {
  printf '%s: skipped: %s\n' "$step" "$1"
  printf '%s\t%s\n' "$step" "$1" >>"$reports/steps"
}

. tools/fixed_addresses.sh

table=()
step=
step_began=0
print_table() {
  printf '\n######## seconds\n'
  printf '%s\n' "${table[@]}"
}

run_steps() {
  local began=$SECONDS keep_going= failed=()
  [ "$1" != --keep-going ] || { keep_going=yes && shift; }
  rm -rf "$reports"
  mkdir -p "$reports"
  trap 'table+=("$(printf "%8d  %s (not finished)" $((SECONDS - step_began)) "$step")"); print_table; df -h .' EXIT
  df -h .
  for step in "$@"; do
    printf '\n######## %s\n' "$step"
    step_began=$SECONDS
    if [ -n "$keep_going" ]; then
      # A subshell of its own, so that its own `set -e` counts.
      (set -e && "step_$step") &
      wait $! || failed+=("$step")
    else
      "step_$step"
    fi
    table+=("$(printf '%8d  %s' $((SECONDS - step_began)) "$step")")
    printf '######## %s: %d s\n' "$step" $((SECONDS - step_began))
  done
  trap - EXIT
  print_table
  printf '%8d  all\n\n######## skips\n' $((SECONDS - began))
  local python=build/installed/bin/python
  [ -x $python ] || python=python3
  $python tools/report_skips.py .ci/allowed-skips "$reports"
  [ ${#failed[@]} -eq 0 ] || { printf '\nfailed: %s\n' "${failed[*]}"; return 1; }
  printf '\nall %d steps passed in %d s\n' $# $((SECONDS - began))
}

# Runs the functions step_NAME of the sourcing script in order, stops at the first failure, and prints the seconds of
# each. .ci/run and .ci/nightly source it. Needs bash.
#
# run_steps [--keep-going] <step>...: runs the steps. At the end, tools/report_skips.py lists the skipped tests with the
# reasons. A reason that is not in .ci/allowed-skips is a failure. If the script has a function `must_wait`, a step for
# which it is true is left out, as a skip.

# Each step writes the results of its tests here as STEP-NAME.xml, and its skipped parts as lines of `steps`.
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
    if [ "$(type -t must_wait)" = function ] && must_wait "$step"; then
      skipped "this machine is too slow for all steps; .ci/nightly runs this one"
      continue
    fi
    if [ -n "$keep_going" ]; then
      # A subshell, so that its `set -e` takes effect.
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
  printf '\nall %d steps passed in %d s\n' ${#table[@]} $((SECONDS - began))
}

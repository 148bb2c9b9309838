# Sets fixed_addresses to a command that starts a program without address randomisation, or to nothing if that is not
# allowed. Source this file, and write $fixed_addresses without quotes before the program. Reason: the shadow memory of
# the sanitizers of gcc 12 and clang 14 collides with mappings of kernels with strong address randomisation.
# shellcheck shell=sh
fixed_addresses="setarch $(uname -m) --addr-no-randomize"
$fixed_addresses true 2>/dev/null || fixed_addresses=

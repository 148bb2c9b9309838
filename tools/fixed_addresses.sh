# Sets fixed_addresses to a command that starts a program without address randomisation, or to nothing where that is not
# allowed. Sourced; write $fixed_addresses without quotes before the program. Sanitizers of gcc 12 and clang 14 put their
# shadow memory where a kernel with much address randomisation puts mappings.
# shellcheck shell=sh
fixed_addresses="setarch $(uname -m) --addr-no-randomize"
$fixed_addresses true 2>/dev/null || fixed_addresses=

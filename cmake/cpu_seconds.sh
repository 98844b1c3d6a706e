#!/bin/sh
# Compiler launcher: runs the command given and leaves the CPU seconds that it took, user and system's, in <object>.cpu, for
# tools/compile_budget.py. A clock's seconds would be those of the machine's other work, too.
"$@"
status=$?
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
# The second line is that of the processes that this one waited for.
[ -z "$object" ] || times >"$object.cpu"
exit $status

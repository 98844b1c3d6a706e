#!/bin/sh
# Compiler launcher: runs the command given, and fails also where ptxas says that it had to serialise wgmma instructions (C7510,
# C7512, C7514, C7515, C7520). To ptxas those are notes that no warning flag turns into errors; to a kernel they cost a third of its
# speed.
output=$("$@" 2>&1)
status=$?
[ -z "$output" ] || printf '%s\n' "$output" >&2
if printf '%s' "$output" | grep -qE '\(C75(10|12|14|15|20)\)'; then
  echo 'error: wgmma instructions are serialised (above); no register of an accumulator may be touched between issue and wait' >&2
  exit 1
fi
exit $status

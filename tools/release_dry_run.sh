#!/usr/bin/env bash
# The steps of .github/workflows/release.yml on this machine: test, build both wheels, and try the one for CPUs with the oldest torch and
# the newest. A tag attests and publishes; this does not.
# Usage: tools/release_dry_run.sh [--no-test]
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1:-}" = --no-test ] || make test
make wheels
for torch in 'torch==2.11.*' torch; do
  echo "== the wheel beside $torch"
  tools/try_wheel.sh dist/cpu/*.whl "$torch"
done
version=$(sed -n 's/.*SPARSELOOM_VERSION "\(.*\)"/\1/p' include/sparseloom/version.h)
grep -q "^## $version" CHANGELOG.md || { echo "CHANGELOG.md has no part for $version" >&2; exit 1; }
ls -l dist/*/*.whl
echo "dry run: a tag v$version would attest and publish these"

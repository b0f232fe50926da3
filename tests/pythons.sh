#!/usr/bin/env bash
# pythons.sh SUITE PYTHON…: run `make SUITE` with each Python, in an environment of its own (.venv-VERSION), and say which ran.
# Exit status 1 if a suite failed or none ran.
set -uo pipefail
version_of() { "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null; }

suite=$1
shift
said=() seen=" " ran=0 failed=0
for python in "$@"; do
  version=$(version_of "$python") || continue # not installed, or a shim of nothing
  [[ $seen != *" $version "* ]] || continue
  seen+="$version "
  environment=.venv-$version
  [ "$(version_of .venv/bin/python)" != "$version" ] || environment=.venv
  if ! log=$(make --no-print-directory PYTHON="$python" VENV="$environment" "$environment/.ready" 2>&1); then
    said+=("Python $version ($python) did not run: $(grep -v '^make' <<<"$log" | tail -n 1)")
    continue
  fi
  ran=1
  if make --no-print-directory PYTHON="$python" VENV="$environment" "$suite"; then
    said+=("Python $version ($python) passed")
  else
    said+=("Python $version ($python) failed") failed=1
  fi
done
[ "$ran" = 1 ] || said+=("no suite ran")
printf '%s\n' "${said[@]}"
[ "$ran" = 1 ] && [ "$failed" = 0 ]

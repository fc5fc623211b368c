#!/usr/bin/env bash
# Run the tests in .venv, which is made if it is missing. Arguments go to pytest; the word "lesson" stands for tests/lesson.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/environment.sh"
ensure_environment || exit
cd "$root" || exit
arguments=()
for argument in "$@"; do
    [ "$argument" = lesson ] && argument=tests/lesson
    arguments+=("$argument")
done
exec "$python" -m pytest ${arguments[@]+"${arguments[@]}"}

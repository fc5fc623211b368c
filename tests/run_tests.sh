#!/usr/bin/env bash
# Run the tests in .venv, which is made if it is missing. Arguments go to pytest; the word "lesson" stands for tests/lesson.
# Without arguments two processes share the tests, which keeps them under ten minutes on two cores; each computes in one
# thread then, since threads of both would wait for one another.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/environment.sh"
ensure_environment || exit
cd "$root" || exit
arguments=()
if [ $# -eq 0 ]; then
    arguments=(-n 2)
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi
for argument in "$@"; do
    [ "$argument" = lesson ] && argument=tests/lesson
    arguments+=("$argument")
done
exec "$python" -m pytest ${arguments[@]+"${arguments[@]}"}

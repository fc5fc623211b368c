# Sourced by scripts/run, scripts/check, scripts/bench and tests/run_tests.sh: makes .venv, or completes the one there is.
#
#   PYTHON     the interpreter to make it with (default: python3), 3.10 or newer
#   PIP_ARGS   further arguments for pip install, such as: -c scripts/constraints.txt
#
# Afterwards $root is the checkout and $python the interpreter in .venv.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python

complain() { printf 'bestiary: %s\n' "$*" >&2; }

ensure_environment() {
    local stamp=$root/.venv/bestiary.stamp want
    want=$(cd "$root" && { pwd && cat pyproject.toml scripts/environment.sh && printf '%s' "${PIP_ARGS-}"; } | cksum)
    [ -x "$python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && return 0
    (
        if command -v flock >/dev/null 2>&1; then
            exec 9>"$root/.venv.lock" && flock 9 # two callers at once: the second one waits, and finds it done
        fi
        [ -x "$python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && exit 0
        if [ ! -x "$python" ]; then
            local maker=${PYTHON:-python3}
            command -v "$maker" >/dev/null 2>&1 || { complain "$maker is not there; set PYTHON to an interpreter of Python 3.10 or newer"; exit 3; }
            "$maker" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
                { complain "$("$maker" --version) is too old; set PYTHON to an interpreter of Python 3.10 or newer"; exit 3; }
            complain "making .venv with $("$maker" --version)"
            "$maker" -m venv "$root/.venv" || { complain "no virtual environment; is the venv module installed (python3-venv)?"; exit 3; }
        fi
        complain "installing bestiary and what its recipes and tests need into .venv; the first time takes some minutes"
        # shellcheck disable=SC2086
        "$python" -m pip install --quiet --disable-pip-version-check ${PIP_ARGS-} --editable "$root[all,dev]" ||
            { complain "the installation failed (above); a PIP_ARGS such as '-c scripts/constraints.txt' pins versions"; exit 3; }
        printf '%s\n' "$want" >"$stamp"
    )
}

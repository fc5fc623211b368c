# Sourced by scripts/run, scripts/check, scripts/bench and tests/run_tests.sh: makes .venv, or completes the one there is.
#
#   PYTHON     the interpreter to make it with (default: python3), 3.10 or newer
#   PIP_ARGS   further arguments for pip install, such as: -c scripts/constraints.txt
#
# Afterwards $root is the checkout and $python the interpreter in .venv.
#
# The stamp in .venv tells for which list of packages it is complete, and with which PIP_ARGS it was made. A call without
# PIP_ARGS takes what is there; one with other PIP_ARGS installs again.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python

complain() { printf 'bestiary: %s\n' "$*" >&2; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

is_complete() { # is_complete LIST: is .venv there, for this list of packages, and with these PIP_ARGS if any are given?
    local stamp=$root/.venv/bestiary.stamp made_for='' made_with=''
    [ -x "$python" ] && [ -f "$stamp" ] || return 1
    { read -r made_for && read -r made_with; } <"$stamp"
    [ "$made_for" = "$1" ] && { [ -z "${PIP_ARGS-}" ] || [ "$made_with" = "$PIP_ARGS" ]; }
}

make_venv() {
    local maker=${PYTHON:-python3}
    command -v "$maker" >/dev/null 2>&1 ||
        { complain "$maker is not there; set PYTHON to an interpreter of Python 3.10 or newer"; return 3; }
    new_enough "$maker" ||
        { complain "$maker is $("$maker" --version 2>&1), too old; set PYTHON to an interpreter of Python 3.10 or newer"; return 3; }
    complain "making .venv with $("$maker" --version 2>&1)"
    "$maker" -m venv "$root/.venv" ||
        { complain "no virtual environment (above); on Debian and Ubuntu: apt install python3-venv; then remove .venv and call again"; return 3; }
}

install_packages() {
    new_enough "$python" ||
        { complain ".venv holds $("$python" --version 2>&1), too old or broken; remove .venv and call again"; return 3; }
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 || # a .venv half made, or made without pip
        { complain ".venv has no pip; remove .venv and call again"; return 3; }
    complain "installing bestiary and what its recipes and tests need into .venv; the first time takes minutes and gigabytes (PyTorch)"
    # shellcheck disable=SC2086
    "$python" -m pip install --disable-pip-version-check --progress-bar off ${PIP_ARGS-} --editable "$root[all,dev]" \
        > >(grep --line-buffered -E '^ *Downloading .*[.](whl|gz) ' >&2) ||
        { complain "the installation failed (above). No network? No space? Versions can be pinned: PIP_ARGS='-c scripts/constraints.txt'"; return 3; }
}

ensure_environment() {
    local list
    list=$(cd "$root" && { pwd && cat pyproject.toml scripts/environment.sh; } | cksum)
    is_complete "$list" && return 0
    (
        if command -v flock >/dev/null 2>&1; then # two callers at once: the second one waits, and finds it done
            exec 9>"$root/.venv.lock" || { complain "cannot write into $root"; exit 3; }
            flock -n 9 || { complain "waiting for another call that is making .venv"; flock 9; }
            is_complete "$list" && exit 0
        fi
        [ -x "$python" ] || make_venv || exit
        install_packages || exit
        printf '%s\n%s\n' "$list" "${PIP_ARGS-}" >"$root/.venv/bestiary.stamp"
    )
}

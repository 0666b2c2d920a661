# Sourced by the commands in bin/: finds a Python that Signalbox runs on.
# Only bash is taken for granted here; everything after this file is Python.

signalbox_python_is_fit() {
    # Run it: a name on PATH may be a shim that leads nowhere.
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

signalbox_find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        if signalbox_python_is_fit "$PYTHON"; then
            printf '%s\n' "$PYTHON"
            return 0
        fi
        echo "error: PYTHON=$PYTHON is not a working Python 3.11 or newer." >&2
        echo "  remedy: unset PYTHON, or point it at one: PYTHON=/path/to/python3.12 $0" >&2
        return 1
    fi
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 && signalbox_python_is_fit "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    if command -v python3 >/dev/null 2>&1; then
        echo "error: the python3 on PATH ($(python3 --version 2>/dev/null || echo 'it does not run')) does not fit: Signalbox needs Python 3.11 or newer." >&2
    else
        echo "error: no Python found: Signalbox needs Python 3.11 or newer." >&2
    fi
    echo "  remedy: install one (Debian and Ubuntu: apt install python3 python3-venv)," >&2
    echo "  or name one that is not on PATH: PYTHON=/path/to/python3.12 $0" >&2
    return 1
}

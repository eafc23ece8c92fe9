#!/bin/sh
# Says in one line what a fresh machine lacks to build Sojourn, before anything is created.
# Usage: tools/preflight.sh PYTHON
set -u
python=$1
missing="" apt="" dnf=""

need() { # what, Debian package, Fedora package
    missing="$missing${missing:+, }$1"
    apt="$apt $2"
    dnf="$dnf${3:+ $3}"
}

if ! command -v "$python" >/dev/null 2>&1; then
    need "Python 3.11 or newer" "python3 python3-venv python3-dev" "python3 python3-devel"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    found=$("$python" -c 'import platform; print(platform.python_version())')
    echo "sojourn: needs Python 3.11 or newer, $python is $found; choose another: make PYTHON=/path/to/python3.11" >&2
    exit 1
else
    "$python" -c 'import venv, ensurepip' 2>/dev/null || need "Python's venv module" python3-venv ""
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
        need "Python's headers (Python.h)" python3-dev python3-devel
fi
echo 'int main() {}' | "${CXX:-g++}" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1 ||
    need "a C++20 compiler (${CXX:-g++})" g++ gcc-c++

[ -z "$missing" ] && exit 0
echo "sojourn: missing $missing; install with: apt install$apt (Debian, Ubuntu)${dnf:+ or dnf install$dnf (Fedora)}" >&2
exit 1

#!/usr/bin/env bash
# Makes sure that this machine has what the build needs, and makes the virtual environment.
# Only called by the Makefile, from the root of the checkout.
set -euo pipefail

# autoconf to patch and libclang are for wolfssl-sys: it runs wolfSSL's autogen, and bindgen.
packages=(gcc libc6-dev make autoconf automake libtool patch libclang-dev)

stop() {
    printf 'error: %s\n' "$1" >&2
    shift
    printf '  hint: %s\n' "$@" >&2
    exit 3
}

# Prints the first Python that is new enough.
find_python() {
    local name
    for name in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    stop 'no Python of version 3.11 or later was found' 'install one, or name it: `make PYTHON=/path/to/python3`'
}

check_rust() {
    command -v cargo >/dev/null || stop '`cargo` was not found' 'install Rust from https://rustup.rs'
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    found=$(rustc --version | cut -d' ' -f2)
    [[ $(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n1) == "$wanted" ]] ||
        stop "Rust $found is too old, $wanted is needed" '`rustup update stable`, or install from https://rustup.rs'
}

install_missing() {
    local missing=() package
    for package in "${packages[@]}"; do
        [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    local as_root=()
    if ((EUID)); then
        command -v sudo >/dev/null ||
            stop "packages are missing: ${missing[*]}" "neither root nor sudo: have them installed with apt-get"
        as_root=(sudo)
    fi
    echo "installing with apt-get: ${missing[*]}"
    # One broken source must not matter if the packages come from another.
    "${as_root[@]}" apt-get update -q || echo 'apt-get update failed, going on with the lists that are there' >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}" ||
        stop "apt-get could not install: ${missing[*]}" 'have them installed by hand, then run make again'
}

# Where there is no apt, say what to install and do not guess what it is called there.
check_tools() {
    local missing=() tool
    for tool in cc make autoconf automake libtoolize patch clang; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    ((${#missing[@]} == 0)) ||
        stop "tools are missing: ${missing[*]}" 'install them by hand (`clang` stands for libclang and its headers)'
}

python=$(find_python)
check_rust
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    packages+=("$("$python" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')")
fi
if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
    install_missing
else
    check_tools
fi
[[ -x .venv/bin/python ]] && .venv/bin/python -c 'import pip' 2>/dev/null || "$python" -m venv .venv

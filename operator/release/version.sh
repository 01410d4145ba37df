# What the scripts of a release agree on. Sourced by them, in the root of the repository.
# shellcheck shell=bash disable=SC2034

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
repository=$(sed -n '/^\[workspace.package\]/,/^\[/s/^repository = "\(.*\)"/\1/p' Cargo.toml)
# Features of the released program.
features=cluster,parquet,s3,gs,azure
tools=${CARGO_TARGET_DIR:-target}/tools

fail() { echo "operator/release/$(basename "$0"): $*" >&2; exit 1; } # MESSAGE

# Packs files of a directory to standard output, with the same bytes whenever and by whomever it is done.
packed() { # DIRECTORY FILE...
    tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+rX,go-w --mtime=@0 -C "$1" -c "${@:2}" | gzip -n
}

# Installs packages from PyPI into a directory, once, by their hashes.
from_pypi() { # DIRECTORY REQUIREMENT...
    local directory=$1
    shift
    [ "$(cat "$directory/.installed" 2>/dev/null)" != "$*" ] || return 0
    rm -rf "$directory"
    python3 -m pip install --quiet --root-user-action ignore --disable-pip-version-check --no-deps --target "$directory" \
        --require-hashes --requirement <(printf '%s\n' "$@")
    echo "$*" >"$directory/.installed"
}

#!/bin/sh
# Installs the command line of a Pawl release: pawl, kubectl-pawl, completions, man pages and examples.
#
#   curl -fsSL BASE/install.sh | sh -s -- [--from BASE] [--to PREFIX]
#   sh install.sh --from DIRECTORY
#
#   --from   address or directory of the release's files; default: the newest release
#   --to     default: ~/.local; the program is PREFIX/bin/pawl, the examples are in PREFIX/share/doc/pawl/examples
#
# The archive is checked against SHA256SUMS of the same place. Whether that is the publisher's, its signature says.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

# Prints the target of this machine.
platform() {
    case "$(uname -s) $(uname -m)" in
    "Linux x86_64" | "Linux amd64") echo x86_64-unknown-linux-musl ;;
    "Linux aarch64" | "Linux arm64") echo aarch64-unknown-linux-musl ;;
    "Darwin arm64") echo aarch64-apple-darwin ;;
    *) fail "no release for $(uname -s) on $(uname -m): build from source, cargo build --release --features cluster" ;;
    esac
}

# Copies the file NAME of the release to TO.
get() {
    if [ -d "$from" ]; then
        cp "$from/$1" "$2" || fail "$from has no file $1"
    elif command -v curl >/dev/null; then
        curl -fsSL --retry 3 -o "$2" "$from/$1" || fail "$from/$1 cannot be downloaded"
    elif command -v wget >/dev/null; then
        wget -q -O "$2" "$from/$1" || fail "$from/$1 cannot be downloaded"
    else
        fail "neither curl nor wget is installed: install one, or download the release and use --from DIRECTORY"
    fi
}

digest() {
    if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}

main() {
    from=https://github.com/pawl-dev/pawl/releases/latest/download
    to=${HOME:-}/.local
    while [ $# -gt 0 ]; do
        case $1 in
        --from | --to) [ $# -ge 2 ] || fail "$1: a value is missing" ;;
        *) fail "unknown argument $1: use --from BASE and --to PREFIX" ;;
        esac
        case $1 in --from) from=${2%/} ;; --to) to=${2%/} ;; esac
        shift 2
    done
    case $from in
    *://*) ;;
    *) [ -d "$from" ] || fail "--from $from is neither a directory nor an address" ;;
    esac
    target=$(platform)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    get SHA256SUMS "$scratch/SHA256SUMS"
    # Lines of sha256sum: digest, two spaces, name.
    line=$(grep "  pawl-v.*-$target\.tar\.gz\$" "$scratch/SHA256SUMS") || fail "$from has no archive for $target"
    archive=${line#*  }
    get "$archive" "$scratch/archive.tar.gz"
    [ "$(digest "$scratch/archive.tar.gz")" = "${line%%  *}" ] ||
        fail "$archive is not the one of SHA256SUMS: its download is damaged, or the file was changed"
    mkdir "$scratch/new"
    tar -xzf "$scratch/archive.tar.gz" -C "$scratch/new"
    "$scratch/new/pawl" --version >/dev/null || fail "$archive does not run on this machine"

    mkdir -p "$to/bin" "$to/share/man/man1" "$to/share/doc/pawl" "$to/share/bash-completion/completions" \
        "$to/share/zsh/site-functions" "$to/share/fish/vendor_completions.d"
    # Renamed over the old one, which may be running.
    cp "$scratch/new/pawl" "$to/bin/.pawl.new"
    chmod 755 "$to/bin/.pawl.new"
    mv -f "$to/bin/.pawl.new" "$to/bin/pawl"
    ln -sf pawl "$to/bin/kubectl-pawl"
    ln -sf pawl "$to/bin/kubectl_complete-pawl"
    cp "$scratch/new/man/man1/"*.1 "$to/share/man/man1/"
    # Those of an older version are overwritten, but nothing is deleted: a job that was run among them has its state there.
    cp -r "$scratch/new/LICENSE" "$scratch/new/NOTICES.html" "$scratch/new/examples" "$to/share/doc/pawl/"
    cp "$scratch/new/completions/pawl.bash" "$to/share/bash-completion/completions/pawl"
    cp "$scratch/new/completions/_pawl" "$to/share/zsh/site-functions/_pawl"
    cp "$scratch/new/completions/pawl.fish" "$to/share/fish/vendor_completions.d/pawl.fish"
    echo "installed: $to/bin/pawl ($("$to/bin/pawl" --version))"
    case ":$PATH:" in *":$to/bin:"*) ;; *) echo "add it to your PATH: export PATH=\"$to/bin:\$PATH\"" ;; esac
}

# The last line: a download that is cut off runs nothing.
main "$@"

# Checks, and the blocks of pages. Sourced by the other scripts.
# shellcheck shell=bash disable=SC2034

passed=0
failed=0
work=$(mktemp -d)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Processes to stop at the end.
servers=()
trap '[ ${#servers[@]} -eq 0 ] || kill "${servers[@]}" 2>/dev/null; rm -rf "$work"' EXIT

# Runs a command as one check, and prints how long it takes.
check() { # NAME COMMAND...
    local name=$1 began=$EPOCHREALTIME
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok    %s (%.1f s)\n' "$name" "$(awk "BEGIN { print $EPOCHREALTIME - $began }")"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n' "$name"
        cat "$work/log"
    fi
}

summary() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

# Prints the block of a page that follows a comment. Fails if there is none.
block() { # PAGE COMMENT
    awk -v mark="<!-- $2 -->" '
        $0 == mark { wanted = 1; next }
        wanted && /^```/ { if (inside) exit; inside = 1; next }
        inside' "$1" | grep . || { echo "$1: no block after <!-- $2 -->"; return 1; }
}

# Prints the first block of a language in a page.
first_block() { # PAGE LANGUAGE
    awk -v fence="\`\`\`$2" 'inside && /^```/ { exit } inside; $0 == fence { inside = 1 }' "$1"
}

# Unpacks the archive of the command line for a target.
unpack() { # OUT TARGET DIRECTORY
    mkdir -p "$3" && tar -xzf "$1/pawl-v$version-$2.tar.gz" -C "$3"
}

# A copy of the release whose files can be replaced.
copy_of() { # OUT DIRECTORY
    cp -r --symbolic-link "$1" "$2"
}

need() { # COMMAND DEBIAN-PACKAGE
    command -v "$1" >/dev/null || tests/install "$2" || { echo "${0#"$PWD"/}: $1 not found: install $2" >&2; exit 2; }
}

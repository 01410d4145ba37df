# How the tests and their programs are compiled: once. Sourced by the other scripts, from anywhere.
# shellcheck shell=bash disable=SC2034
#
# The images hold nothing but static programs, and a test runs as well from a static program as from another. So on a
# Linux with glibc everything is compiled statically, with the features of the whole workspace and its tests, and all
# scripts find the same artifacts. (With --target, flags are not for build scripts and macros.) Line tables are most of
# what the compiler would write, and a panic says its line without them.

host=$(rustc -vV | sed -n 's/^host: //p')
programs=${CARGO_TARGET_DIR:-target}/release
if [[ $host == *-linux-gnu ]]; then
    programs=${CARGO_TARGET_DIR:-target}/$host/release
    flags=CARGO_TARGET_${host^^}_RUSTFLAGS
    flags=${flags//-/_}
    export CARGO_BUILD_TARGET=$host CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols
    export "$flags"='-C target-feature=+crt-static'
    # They would take the place of these flags.
    unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
fi

# For what opens libraries while it runs, as all that asks for a GPU does.
dynamically() { env -u CARGO_BUILD_TARGET ${flags:+-u "$flags"} "$@"; } # COMMAND...

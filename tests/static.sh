# Build settings of the tests and their programs, so that everything is compiled once. Sourced by the other scripts.
# shellcheck shell=bash disable=SC2034
#
# The test images contain static programs only. On Linux with glibc everything is therefore linked statically, with the
# features of the whole workspace and its tests, and all scripts share the same artifacts. (With --target, RUSTFLAGS do not
# apply to build scripts and proc macros.) Line tables would be most of the output; panics report their line without them.

host=$(rustc -vV | sed -n 's/^host: //p')
programs=${CARGO_TARGET_DIR:-target}/release
if [[ $host == *-linux-gnu ]]; then
    programs=${CARGO_TARGET_DIR:-target}/$host/release
    flags=CARGO_TARGET_${host^^}_RUSTFLAGS
    flags=${flags//-/_}
    export CARGO_BUILD_TARGET=$host CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols
    export "$flags"='-C target-feature=+crt-static'
    # These would override the flags above.
    unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
fi

# Runs a command with dynamic linking, for programs that load libraries at run time, such as the CUDA libraries.
dynamically() { env -u CARGO_BUILD_TARGET ${flags:+-u "$flags"} "$@"; } # COMMAND...

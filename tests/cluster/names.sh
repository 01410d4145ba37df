# Paths and network namespace names of the test cluster. Sourced by the other scripts.
# shellcheck shell=bash disable=SC2034

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# Binaries and the lock are shared; everything else of a cluster is in $state.
root=$(realpath -m "$here/../../target/cluster")
# PAWL_CLUSTER_TOOLS: a directory with programs that this machine lacks, in bin/ and cni/ (see tests/device/cluster).
tools=${PAWL_CLUSTER_TOOLS:-}
cni=/usr/lib/cni
if [ -n "$tools" ]; then
    PATH=$tools/bin:$PATH
    cni=$tools/cni
fi
# PAWL_CLUSTER selects a separate cluster. Networks are isolated, so clusters use the same addresses.
cluster=${PAWL_CLUSTER:-pawl}
state=$root/state
[ "$cluster" = pawl ] || state=$root/$cluster
control_plane=$cluster-cp

# Runs a command in the control plane's network. Not with `ip netns exec`, which hides the cgroups.
inside() { nsenter --net="/run/netns/$control_plane" -- "$@"; }

# kubectl as the administrator.
admin() { inside "$state/bin/kubectl" --kubeconfig "$state/pki/admin.kubeconfig" --request-timeout 10s "$@"; }

fail() {
    echo "${0#"$PWD"/}: $*" >&2
    exit 1
}

# Adds a network namespace. Another cluster that stops at the same moment must not remove the directory of all of them.
add_network() { flock "$root/netns" ip netns add "$1"; } # NAMESPACE

# Removes the cgroups of nodes that are off. Those of killed containers can be removed only after a short delay. Returns 1 if some
# are left.
remove_cgroups() { # NAME, which may be a pattern
    local left
    for _ in $(seq 100); do
        left=$(find /sys/fs/cgroup -mindepth 1 -maxdepth 2 -type d -name "$1" 2>/dev/null)
        [ -n "$left" ] || return 0
        # shellcheck disable=SC2086
        find $left -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    return 1
}

# Kills all processes of a network namespace, simulating a power failure, and removes the namespace.
cut_power() { # NAMESPACE
    local ns=$1 pids
    [ -e "/run/netns/$ns" ] || return 0
    for _ in $(seq 100); do
        pids=$(ip netns pids "$ns" 2>/dev/null) || break
        [ -n "$pids" ] || break
        # shellcheck disable=SC2086
        kill -9 $pids 2>/dev/null || true
        sleep 0.05
    done
    ip netns del "$ns"
}

# Acquires the exclusive lock of the cluster; other users wait. `with` holds the lock while its command runs.
lock() {
    [ "${PAWL_CLUSTER_LOCK:-}" = held ] && return
    mkdir -p "$root"
    exec 9>"$root/lock${PAWL_CLUSTER:+-$PAWL_CLUSTER}"
    if ! flock --nonblock 9; then
        echo "${0#"$PWD"/}: waiting for another user of the test cluster" >&2
        flock 9
    fi
    export PAWL_CLUSTER_LOCK=held
}

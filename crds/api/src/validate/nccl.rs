//! Variables of NCCL. Those of its user guide that the library of release 2.32.3 reads, some that only the library
//! names, and a few that older releases read.

use super::Problem;
use crate::spec::TrainingJobSpec;
use pawl_contract::settings::Settings;

/// Variables without their prefix `NCCL_`, in order.
#[rustfmt::skip]
const KNOWN: &[&str] = &[
    "ALGO", "ALLGATHERV_ENABLE", "ALLOC_P2P_NET_LL_BUFFERS", "BUFFSIZE", "CGA_CLUSTER_SIZE", "CHECKS_DISABLE",
    "CHECK_MODE", "CHECK_POINTERS", "CHUNK_SIZE", "COLLNET_ENABLE", "COLLNET_NODE_THRESHOLD", "COMM_BLOCKING",
    "COMM_ID", "COMM_SHRINK_SHARE_RESOURCES", "COMM_SPLIT_SHARE_RESOURCES", "CONF_FILE",
    "CREATE_THREAD_CONTEXT", "CROSS_NIC", "CTA_POLICY", "CUMEM_ENABLE", "CUMEM_HOST_ENABLE", "DEBUG",
    "DEBUG_FILE", "DEBUG_SUBSYS", "DEBUG_TIMESTAMP_FORMAT", "DEBUG_TIMESTAMP_LEVELS", "DMABUF_ENABLE",
    "ENV_PLUGIN", "GDRCOPY_ENABLE", "GDRCOPY_FIFO_ENABLE", "GDRCOPY_FLUSH_ENABLE", "GDRCOPY_SYNC_ENABLE",
    "GDR_FLUSH_DISABLE", "GIN_ENABLE", "GIN_TYPE", "GRAPH_DUMP_FILE", "GRAPH_DUMP_FILE_RANK", "GRAPH_FILE",
    "GRAPH_HELPER_DISABLE", "GRAPH_MIXING_SUPPORT", "GRAPH_REGISTER", "GRAPH_STREAM_ORDERING", "HOSTID",
    "IB_ADAPTIVE_ROUTING", "IB_ADDR_FAMILY", "IB_ADDR_RANGE", "IB_AR_THRESHOLD", "IB_CUDA_SUPPORT",
    "IB_DATA_DIRECT", "IB_DISABLE", "IB_ECE_ENABLE", "IB_FIFO_TC", "IB_GID_INDEX", "IB_HCA", "IB_MERGE_NICS",
    "IB_MERGE_VFS", "IB_OOO_RQ", "IB_PCI_RELAXED_ORDERING", "IB_PKEY", "IB_QPS_PER_CONNECTION", "IB_RETRY_CNT",
    "IB_RETURN_ASYNC_EVENTS", "IB_ROCE_VERSION_NUM", "IB_SL", "IB_SPLIT_DATA_ON_QPS", "IB_SUBNET_AWARE_ROUTING",
    "IB_SUBNET_PREFIX_LEN", "IB_TC", "IB_TIMEOUT", "IB_USE_INLINE", "IB_WARN_RAIL_LOCAL", "IGNORE_CPU_AFFINITY",
    "IGNORE_DISABLED_P2P", "L1_SHARED_MEMORY_CARVEOUT", "LAUNCH_MODE", "LAUNCH_ORDER_IMPLICIT",
    "LAUNCH_RACE_FATAL", "LEGACY_CUDA_REGISTER", "LL128_BUFFSIZE", "LL128_C2C", "LL128_NTHREADS", "LL_BUFFSIZE",
    "LL_THRESHOLD", "LOCAL_REGISTER", "LSA_TEAM_SIZE", "MAX_CTAS", "MAX_NCHANNELS", "MAX_NRINGS",
    "MAX_P2P_NCHANNELS", "MEM_SYNC_DOMAIN", "MIN_CTAS", "MIN_NCHANNELS", "MIN_NRINGS", "MIN_P2P_NCHANNELS",
    "MNNVL_CLIQUE_ID", "MNNVL_ENABLE", "MNNVL_UUID", "NCHANNELS_PER_NET_PEER", "NET", "NETDEVS_POLICY",
    "NET_DISABLE_INTRA", "NET_FORCE_FLUSH", "NET_FORCE_MERGE", "NET_GDR_C2C", "NET_GDR_LEVEL", "NET_GDR_READ",
    "NET_MERGE_LEVEL", "NET_OVERHEAD", "NET_PLUGIN", "NET_SHARED_BUFFERS", "NET_SHARED_COMMS", "NO_CACHE",
    "NSOCKS_PERTHREAD", "NTHREADS", "NVB_DISABLE", "NVB_PRECONNECT", "NVLSTREE_MAX_CHUNKSIZE", "NVLS_CHUNKSIZE",
    "NVLS_ENABLE", "NVLS_NCHANNELS", "NVTX_DISABLE", "OOB_NET_ENABLE", "OOB_NET_IFNAME", "P2P_DIRECT_DISABLE",
    "P2P_DISABLE", "P2P_LEVEL", "P2P_LL_THRESHOLD", "P2P_NET_CHUNKSIZE", "P2P_NVL_CHUNKSIZE",
    "P2P_PCI_CHUNKSIZE", "P2P_PER_CHANNEL_NET_BW", "P2P_PXN_LEVEL", "P2P_READ_ENABLE", "P2P_USE_CUDA_MEMCPY",
    "PAT_ENABLE", "PROFILER_PLUGIN", "PROGRESS_APPENDOP_FREQ", "PROTO", "PROXY_APPEND_BATCH_SIZE",
    "PROXY_CPUSET", "PXN_C2C", "PXN_DISABLE", "RAS_ADDR", "RAS_ENABLE", "RAS_TIMEOUT_FACTOR",
    "REPORT_CONNECT_PROGRESS", "RUNTIME_CONNECT", "SET_CPU_STACK_SIZE", "SET_STACK_SIZE", "SET_THREAD_NAME",
    "SHM_DISABLE", "SHM_LOCALITY", "SHM_MEMCPY_MODE", "SHM_USE_CUDA_MEMCPY", "SINGLE_PROC_MEM_REG_ENABLE",
    "SINGLE_RING_THRESHOLD", "SOCKET_FAMILY", "SOCKET_IFNAME", "SOCKET_NTHREADS", "SOCKET_POLL_TIMEOUT_MSEC",
    "SOCKET_RCVBUF", "SOCKET_RETRY_CNT", "SOCKET_RETRY_SLEEP_MSEC", "SOCKET_SNDBUF", "SYM_KERNEL",
    "THREAD_THRESHOLDS", "TOPO_DUMP_FILE", "TOPO_DUMP_FILE_RANK", "TOPO_FILE", "TREE_THRESHOLD", "TUNER_PLUGIN",
    "UID_STAGGER_RATE", "UID_STAGGER_THRESHOLD", "WIN_ENABLE", "WORK_ARGS_BYTES", "WORK_FIFO_BYTES",
];

pub(super) fn check(spec: &TrainingJobSpec) -> Vec<Problem> {
    let mut problems = of("spec.settings", &spec.settings);
    for (i, phase) in spec.phases.iter().enumerate() {
        problems.extend(of(&format!("spec.phases[{i}].settings"), &phase.settings));
        for (k, fallback) in phase.fallbacks.iter().enumerate() {
            problems.extend(of(&format!("spec.phases[{i}].fallbacks[{k}].settings"), &fallback.settings));
        }
    }
    problems
}

fn of(at: &str, settings: &Settings) -> Vec<Problem> {
    let names = settings.nccl.iter().flatten().map(|(name, _)| name);
    let unknown = names.filter(|name| !name.strip_prefix("NCCL_").is_some_and(|rest| KNOWN.contains(&rest)));
    unknown
        .map(|name| {
            let bare = name.strip_prefix("NCCL_").unwrap_or(name);
            let near = KNOWN.iter().min_by_key(|k| strsim::damerau_levenshtein(k, bare));
            let near = near.filter(|k| strsim::damerau_levenshtein(k, bare) <= 3);
            let remedy = near.map_or_else(|| "remove it".to_owned(), |k| format!("did you mean NCCL_{k}?"));
            Problem::new(format!("{at}.nccl.{name}"), "", "is not a variable that NCCL reads", remedy)
        })
        .collect()
}

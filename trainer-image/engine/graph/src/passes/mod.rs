//! Settings as passes: functions from program to program. `Recipe` puts them together.

mod arena;
mod attention;
mod bucket;
mod float8;
mod normed_attention;
mod precision;
mod recompute;
mod rematerialize;
mod rewrite;
mod scopes;
mod shard;
mod simplify;
mod sums;

pub use arena::{Arena, place_in_arenas, prune_states};
pub use attention::expand_attention;
pub use bucket::{GRADIENT, bucket_gradients, scatter_gradients};
pub use float8::{FIRST, Float8, HISTORY, Scaling, count_out_of_range, scale_products};
pub use normed_attention::{expand_norms, join_norms};
pub use precision::{lower_precision, widen_all, widen_products};
pub use recompute::recompute;
pub use rematerialize::rematerialize;
pub use scopes::Pattern;
pub use shard::gather_shards;
pub use simplify::simplify;
pub use sums::join_sums;

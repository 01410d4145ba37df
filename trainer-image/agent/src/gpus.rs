//! What disturbs the GPUs of a script: the trainers of this repository watch their own, and report it.

use pawl_contract::measured::Disturbance;

#[cfg(feature = "cuda")]
use {crate::processes::is_descendant, pawl_launch::nvml::GpuWatch};

/// The GPUs of a script on this node; none without the feature `cuda`, as without NVML.
#[derive(Debug)]
pub(crate) struct Gpus {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing watches them"))]
    names: Vec<String>,
    #[cfg(feature = "cuda")]
    watched: Vec<GpuWatch>,
}

impl Gpus {
    /// The GPUs with these names, as `CUDA_VISIBLE_DEVICES` has them, which nobody watches yet.
    pub(crate) fn named(names: Vec<String>) -> Self {
        Self {
            names,
            #[cfg(feature = "cuda")]
            watched: Vec::new(),
        }
    }

    /// Watches them from now on. One that NVML does not know, such as a part of a GPU, is not watched.
    pub(crate) fn watch(&mut self) {
        #[cfg(feature = "cuda")]
        {
            let watch = |name: &String| GpuWatch::beside(name, is_descendant).ok();
            self.watched = self.names.iter().filter_map(watch).collect();
        }
    }

    /// Fills in what the script does not report itself: of several GPUs, the largest shares.
    pub(crate) fn add_to(&self, disturbance: &mut Disturbance) {
        let found = self.disturbances();
        let largest = |share: fn(&Disturbance) -> Option<f64>| found.iter().filter_map(share).reduce(f64::max);
        disturbance.throttled_share = disturbance.throttled_share.or_else(|| largest(|found| found.throttled_share));
        disturbance.shared_gpu_share = disturbance.shared_gpu_share.or_else(|| largest(|found| found.shared_gpu_share));
    }

    #[cfg(feature = "cuda")]
    fn disturbances(&self) -> Vec<Disturbance> {
        self.watched.iter().map(GpuWatch::disturbance).collect()
    }

    #[cfg(not(feature = "cuda"))]
    fn disturbances(&self) -> Vec<Disturbance> {
        Vec::new()
    }
}

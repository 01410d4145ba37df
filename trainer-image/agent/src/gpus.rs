//! What disturbs the GPUs of a script: the trainers of this repository watch their own, and report it.

use pawl_contract::measured::Disturbance;

#[cfg(feature = "cuda")]
use {crate::processes::is_descendant, parking_lot::Mutex, pawl_launch::nvml::GpuWatch, std::sync::Arc};

/// The GPUs of a script on this node; none without the feature `cuda`, as without NVML.
#[derive(Debug)]
pub(crate) struct Gpus {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing watches them"))]
    names: Vec<String>,
    #[cfg(feature = "cuda")]
    watched: Option<Arc<Mutex<Vec<GpuWatch>>>>,
}

impl Gpus {
    /// The GPUs with these names, as `CUDA_VISIBLE_DEVICES` has them, which nobody watches yet.
    pub(crate) fn named(names: Vec<String>) -> Self {
        Self {
            names,
            #[cfg(feature = "cuda")]
            watched: None,
        }
    }

    /// Watches them from now on. One that NVML does not know, such as a part of a GPU, is not watched.
    ///
    /// NVML is started in a thread of its own: with a GPU that hangs, it may never answer.
    pub(crate) fn watch(&mut self) {
        #[cfg(feature = "cuda")]
        match &self.watched {
            Some(watched) => watched.lock().iter().for_each(GpuWatch::restart),
            None => {
                let watched = Arc::new(Mutex::new(Vec::new()));
                self.watched = Some(Arc::clone(&watched));
                let names = self.names.clone();
                let start = move || {
                    let started = names.iter().filter_map(|name| GpuWatch::beside(name, is_descendant).ok()).collect();
                    *watched.lock() = started;
                };
                // Without the thread, nothing is observed.
                let _ = std::thread::Builder::new().name("nvml-start".into()).spawn(start);
            }
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
        self.watched
            .iter()
            .flat_map(|watched| watched.lock().iter().map(GpuWatch::disturbance).collect::<Vec<_>>())
            .collect()
    }

    #[cfg(not(feature = "cuda"))]
    fn disturbances(&self) -> Vec<Disturbance> {
        Vec::new()
    }
}

//! The Kubernetes shell: a reconcile fetches, observes, decides, writes the status, acts, and emits events.
//!
//! Reading order: [`reconcile`] is the loop, [`observe`] makes facts into what decisions are made on, [`objects`] makes
//! plans into objects, [`apply`] carries them out. [`belief`] explains why no crash and no stale cache loses evidence
//! or runs two gangs.
//!
//! # What it calls
//!
//! | group | resource | verbs | for |
//! |---|---|---|---|
//! | `pawl.dev` | `trainingjobs` | get list watch delete | the jobs; `ttlAfterFinished` |
//! | `pawl.dev` | `trainingjobs/status` | patch | the status |
//! | `pawl.dev` | `trainingjobs/finalizers` | update | owner references that block deletion, where admission asks for it |
//! | `batch` | `jobs` | get list watch create patch delete | gangs |
//! | | `pods` | list watch deletecollection | facts; stopping a broken gang |
//! | | `configmaps` | get list watch create patch delete | plans |
//! | | `secrets` | create | tokens of gangs, for some of them at a time; never read |
//! | | `persistentvolumeclaims` | get create | the storage of jobs that name none |
//! | | `services` | get list watch create patch | the headless Service of a namespace |
//! | | `nodes` | get | whether a node is dead; optional: without it, pods of a dead node are waited for |
//! | | `events` | list | why pods of a gang are refused; optional |
//! | `events.k8s.io` | `events` | create | events of a job |
//! | `coordination.k8s.io` | `leases` | get create update | the election, in the operator's own namespace; which operator acts in a namespace |

#![forbid(unsafe_code)]

pub mod apply;
pub mod belief;
pub mod client;
pub mod clock;
mod compressed;
pub mod context;
pub mod controller;
pub mod error;
pub mod events;
pub mod facts;
pub mod jobs;
pub mod key;
pub mod layer;
pub mod leader;
pub mod live;
pub mod metrics;
pub mod names;
pub mod namespaces;
pub mod nodes;
pub mod objects;
pub mod observe;
mod owned;
pub mod packed;
pub mod reading;
pub mod reconcile;
pub mod refusals;
pub mod repair;
mod run;
mod sample;
pub mod scopes;
pub mod serve;
pub mod services;
pub mod telemetry;
pub mod waits;
pub mod watch;
pub mod watched;

pub use run::{Config, RunError, run};

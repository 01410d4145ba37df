//! The manifest, the CustomResourceDefinition and the admission policy agree.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cel;
mod crd;
mod examples;
mod manifests;
mod policy;

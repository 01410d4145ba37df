//! What needs the cluster for itself: it takes something from everybody, or has seconds for what the machine does.

mod api_server;
mod pods;

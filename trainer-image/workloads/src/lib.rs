//! The systems Pawl trains and their data.

//! The decision core: decide() is a pure function of (spec, status, observations, now).

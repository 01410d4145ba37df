//! A trainer that keeps the contract without any mathematics, with planted faults.

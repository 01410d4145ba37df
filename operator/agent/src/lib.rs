//! Starts, watches and ends the ranks of one node; the gang's rendezvous.

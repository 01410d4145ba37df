//! What operator and trainer share: settings, plan, report, progress, exit codes.

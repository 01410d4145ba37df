//! Xid errors of NVIDIA GPUs from the kernel log: the driver logs an Xid for every fault.

use rustix::fs::{Mode, OFlags, open};
use std::io::Read;

/// Maximum length of a record of the kernel log.
const RECORD: usize = 8 << 10;

/// The newest Xid of the kernel log: `Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus`. `None` when there is none,
/// or the log is not readable (as in most containers).
pub fn newest() -> Option<String> {
    let log = open("/dev/kmsg", OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut log = std::fs::File::from(log);
    let mut found = None;
    let mut record = [0; RECORD];
    // Each read returns one record; at the end of the log it would block.
    while let Ok(length) = log.read(&mut record) {
        if length == 0 {
            break;
        }
        found = of(&String::from_utf8_lossy(&record[..length])).or(found);
    }
    found
}

/// The Xid of a record.
fn of(record: &str) -> Option<String> {
    let text = record.split_once(';').map_or(record, |(_, text)| text);
    let xid = &text[text.find("NVRM: Xid")? + "NVRM: ".len()..];
    Some(xid.lines().next().unwrap_or_default().trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xid_is_found_among_other_records() {
        let record =
            "4,1234,5678,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, GPU has fallen off the bus.\n SUBSYSTEM=pci\n";
        let expected = "Xid (PCI:0000:1b:00): 79, pid=4242, GPU has fallen off the bus.";
        assert_eq!(of(record).as_deref(), Some(expected));
        // What driver 580 wrote when a program of an H200 wrote beyond its memory.
        let record = "3,812,75325767,-;NVRM: Xid (PCI:0000:00:06): 31, pid=481, name=python3, channel 0x0000000a, \
            intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_4 faulted @ 0x8332_6be00000. Fault is of type \
            FAULT_PDE ACCESS_TYPE_VIRT_WRITE\n";
        let found = of(record).expect("an Xid");
        assert!(found.starts_with("Xid (PCI:0000:00:06): 31, pid=481, ") && found.ends_with("VIRT_WRITE"), "{found}");
        assert_eq!(of("6,1,2,-;eth0: link up"), None);
    }
}

//! Kernel settings under /proc/sys/net, in the namespace of the calling thread.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::kernel::link::LinkError;
use crate::kernel::sysctl_record;

/// Writes `net/FAMILY/conf/INTERFACE/KEY`, such as `ipv6`, `eth0`, `disable_ipv6`.
///
/// # Errors
/// The setting does not exist, or the kernel rejects the value.
pub fn set_interface(family: &str, interface: &str, key: &'static str, value: &str) -> Result<(), LinkError> {
    let path = interface_path(family, interface, key);
    std::fs::write(&path, value)
        .map_err(|e| LinkError::new(format!("{interface} ({})", path.display()), "write", e))
}

/// Sets a variable like [`set_interface`], for an interface that is not the agent's: the value of before is recorded.
///
/// # Errors
/// The setting does not exist, the kernel rejects the value, or the value of before cannot be recorded.
pub fn change_interface(
    family: &str,
    interface: &str,
    key: &'static str,
    value: &str,
) -> Result<(), LinkError> {
    let path = interface_path(family, interface, key);
    sysctl_record::change(&path, value)
        .map_err(|e| LinkError::new(format!("{interface} ({})", path.display()), "write", e))
}

/// Reads `net/FAMILY/conf/INTERFACE/KEY`, without the newline.
///
/// # Errors
/// The setting does not exist or cannot be read.
pub fn get_interface(family: &str, interface: &str, key: &'static str) -> Result<String, LinkError> {
    let path = interface_path(family, interface, key);
    let read = std::fs::read_to_string(&path);
    read.map(|t| t.trim_end().to_owned())
        .map_err(|e| LinkError::new(format!("{interface} ({})", path.display()), "read", e))
}

/// Names under `net/FAMILY/conf`: interfaces, `all` and `default`.
///
/// # Errors
/// The directory cannot be listed.
pub fn interfaces(family: &str) -> Result<Vec<String>, LinkError> {
    let path: PathBuf = ["/proc/sys/net", family, "conf"].iter().collect();
    let error = |e| LinkError::new(path.display().to_string(), "list", e);
    let entries = std::fs::read_dir(&path).map_err(error)?;
    entries.map(|entry| Ok(entry.map_err(error)?.file_name().to_string_lossy().into_owned())).collect()
}

/// Raises the number `net/netfilter/KEY` to at least `value`. Returns false when the setting does not exist (yet), before connection
/// tracking is loaded.
///
/// # Errors
/// The setting cannot be read, or the kernel rejects the value.
pub fn raise_netfilter(key: &'static str, value: u32) -> Result<bool, LinkError> {
    let path = PathBuf::from("/proc/sys/net/netfilter").join(key);
    let error = |doing, e| LinkError::new(path.display().to_string(), doing, e);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(error("read", e)),
    };
    // Other values are left unchanged.
    if text.trim().parse::<u32>().is_ok_and(|now| now < value) {
        sysctl_record::change(&path, &value.to_string()).map_err(|e| error("write", e))?;
    }
    Ok(true)
}

/// Ephemeral port range for both IP families (`net/ipv4/ip_local_port_range`); the kernel's default if it cannot be read.
pub fn local_ports() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    text.ok().and_then(|text| port_range(&text)).unwrap_or(32768..=60999)
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last)), None) => Some(first..=last),
        _ => None,
    }
}

/// Turns IPv6 off on an interface. Succeeds on a kernel without IPv6.
///
/// # Errors
/// The setting cannot be written, for another reason than that the kernel has no IPv6.
pub fn disable_ipv6(interface: &str) -> Result<(), LinkError> {
    match set_interface("ipv6", interface, "disable_ipv6", "1") {
        Err(e)
            if e.source.kind() == io::ErrorKind::NotFound
                && !PathBuf::from("/proc/sys/net/ipv6").exists() =>
        {
            Ok(())
        }
        other => other,
    }
}

fn interface_path(family: &str, interface: &str, key: &str) -> PathBuf {
    // Dots in interface names are kept: only sysctl(8) converts dots to slashes.
    ["/proc/sys/net", family, "conf", interface, key].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_source_ports_is_read_as_the_kernel_writes_it() {
        assert_eq!(port_range("1024\t65535\n"), Some(1024..=65535));
        assert_eq!(port_range("32768\n"), None);
        assert_eq!(port_range("a b"), None);
        assert!(!local_ports().is_empty());
    }
}

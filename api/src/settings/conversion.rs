//! Values of ovn-kubernetes in the form that our flags have.

use std::path::Path;

/// What became of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Converted {
    /// The value of our flag.
    Value(String),
    /// To be left out, and why.
    Skip(String),
    /// The value has no equivalent; the text says what would be valid.
    Wrong(String),
}

/// Whether a value says no, as Go and people write it.
pub(super) fn is_off(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "f" | "false" | "no" | "off")
}

/// `true` or `false`.
pub(super) fn boolean(value: &str) -> Converted {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "yes" | "on" => Converted::Value("true".to_owned()),
        _ if is_off(value) => Converted::Value("false".to_owned()),
        _ => Converted::Wrong("must be true or false".to_owned()),
    }
}

/// The address of an API server; one without a scheme is http, as ovn-kubernetes has it.
pub(super) fn server(value: &str) -> Converted {
    let value = value.trim();
    Converted::Value(match value.contains("://") {
        true => value.to_owned(),
        false => format!("http://{value}"),
    })
}

/// A level of logs: ovn-kubernetes counts from 0 (only what ends the process) to 5 (everything).
pub(super) fn level(value: &str) -> Converted {
    let level = match value.trim() {
        "0" | "1" | "2" => "error",
        "3" => "warn",
        "4" => "info",
        "5" => "debug",
        "" => return Converted::Wrong("must be a number from 0 to 5, or a level such as info".to_owned()),
        other if other.parse::<u32>().is_ok() => "trace",
        other => other,
    };
    Converted::Value(level.to_owned())
}

/// A file that ovn-kubernetes' packages name whether or not it is there.
pub(super) fn file(value: &str) -> Converted {
    match Path::new(value.trim()).exists() {
        true => Converted::Value(value.trim().to_owned()),
        false => Converted::Skip(format!("there is no file {value}")),
    }
}

/// The mode of a gateway.
pub(super) fn gateway_mode(value: &str) -> Converted {
    match value.trim() {
        "" => Converted::Skip("it names no mode".to_owned()),
        mode @ ("shared" | "local") => Converted::Value(mode.to_owned()),
        _ => Converted::Wrong("must be `shared` or `local`; every node has a gateway".to_owned()),
    }
}

/// A switch for gateways of mode local.
pub(super) fn gateway_local(value: &str) -> Converted {
    match boolean(value) {
        Converted::Value(on) if on == "true" => Converted::Value("local".to_owned()),
        Converted::Value(_) => Converted::Skip("the mode is shared without it".to_owned()),
        other => other,
    }
}

/// The VLAN of a gateway's uplink.
pub(super) fn vlan(value: &str) -> Converted {
    match value.trim() {
        "" | "0" => Converted::Skip("there is no VLAN on the uplink".to_owned()),
        _ => Converted::Wrong(
            "must be 0; make a VLAN interface with this tag on the node, and let --gateway-interface name it"
                .to_owned(),
        ),
    }
}

/// The type of tunnels.
pub(super) fn encapsulation(value: &str) -> Converted {
    match value.trim() {
        "" | "geneve" => Converted::Skip("it is the only type".to_owned()),
        _ => Converted::Wrong("must be `geneve`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_as_their_writers_meant_them() {
        let value = |text: &str| Converted::Value(text.to_owned());
        assert_eq!(server("10.0.0.1:8080"), value("http://10.0.0.1:8080"));
        assert_eq!(server("https://10.0.0.1"), value("https://10.0.0.1"));
        assert_eq!((level("4"), level("5"), level("warn")), (value("info"), value("debug"), value("warn")));
        assert_eq!((boolean("True"), boolean("0")), (value("true"), value("false")));
        assert!(matches!(boolean("maybe"), Converted::Wrong(_)));
        assert_eq!((gateway_mode("local"), gateway_mode("shared")), (value("local"), value("shared")));
        assert!(matches!(gateway_mode("spare"), Converted::Wrong(_)));
        assert_eq!(gateway_local("true"), value("local"));
        assert!(matches!(gateway_local("false"), Converted::Skip(_)));
        assert!(matches!(vlan("100"), Converted::Wrong(_)));
        assert!(matches!(encapsulation("vxlan"), Converted::Wrong(_)));
        assert!(matches!(file("/nothing/here"), Converted::Skip(_)));
    }
}

//! The file `ovn_k8s.conf`, in the form of Go's gcfg: sections and keys in any case, values in quotes or without.

use std::path::Path;

use configparser::ini::{Ini, IniDefault};

/// Section, key and value of every setting, section and key in lower case. A file that is missing has none, unless it was `named`.
pub(super) fn read(path: &Path, named: bool) -> Result<Vec<(String, String, String)>, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => return Ok(Vec::new()),
        Err(error) => return Err(format!("--config-file {}: {error}", path.display())),
    };
    parse(&text).map_err(|error| format!("--config-file {}: {error}", path.display()))
}

fn parse(text: &str) -> Result<Vec<(String, String, String)>, String> {
    let mut format = IniDefault::default();
    format.delimiters = vec!['='];
    format.default_section = "keys before a section".to_owned();
    let sections = Ini::new_from_defaults(format).read(text.to_owned())?;
    let mut all: Vec<_> = sections
        .into_iter()
        .flat_map(|(section, keys)| {
            let of = move |(key, value): (String, Option<String>)| {
                // A key without a value is a switch.
                let value = value.map_or_else(|| "true".to_owned(), |value| unquoted(&value));
                (section.clone(), key, value)
            };
            keys.into_iter().map(of)
        })
        .collect();
    all.sort();
    Ok(all)
}

fn unquoted(value: &str) -> String {
    let value = value.trim();
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keys_quotes_and_comments_are_read_as_go_does() {
        let text = "# made by hand\n[Default]\nmtu=1400\n; more\n[Kubernetes]\napiserver = \"https://10.0.0.1:6443\"\n\
                    [gateway]\nnodeport\n[OvnNorth]\naddress=tcp:10.0.0.1:6641\n";
        let found = parse(text).unwrap();
        let found: Vec<_> = found.iter().map(|(s, k, v)| [s.as_str(), k, v].join(" ")).collect();
        assert_eq!(
            found,
            [
                "default mtu 1400",
                "gateway nodeport true",
                "kubernetes apiserver https://10.0.0.1:6443",
                "ovnnorth address tcp:10.0.0.1:6641"
            ]
        );
    }

    #[test]
    fn a_missing_file_is_an_error_only_if_it_was_named() {
        let missing = Path::new("/nothing/ovn_k8s.conf");
        assert!(read(missing, false).unwrap().is_empty());
        assert!(read(missing, true).unwrap_err().contains("/nothing/ovn_k8s.conf"));
    }
}

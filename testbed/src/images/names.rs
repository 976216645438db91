//! The names of images: `registry/path/name:tag`.

use anyhow::{Result, bail};

/// Registries of the list whose images must stay out of reach: specs check that pulling from them fails.
const UNREACHABLE: &[&str] = &["gcr.io/k8s-authenticated-test/", "invalid.registry.k8s.io/"];

/// The names in what `e2e.test --list-images` prints, in order and each once.
pub(super) fn parse(text: &str) -> Vec<String> {
    let mut names: Vec<String> =
        text.lines().map(str::trim).filter(|l| is_reference(l)).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// One word with a registry and a tag: other lines are what the program logs.
fn is_reference(line: &str) -> bool {
    let after_slash = line.rsplit('/').next().unwrap_or_default();
    line.contains('/') && after_slash.contains(':') && !line.contains(char::is_whitespace)
}

/// The wanted names of one image, whatever their registry and tag.
///
/// # Errors
/// None is wanted: then the list is of another suite than this test bed knows.
pub(super) fn all(wanted: &[String], image: &str) -> Result<Vec<String>> {
    let names: Vec<String> = wanted
        .iter()
        .filter(|w| name(w) == Some(image) && !UNREACHABLE.iter().any(|r| w.starts_with(r)))
        .cloned()
        .collect();
    if names.is_empty() {
        bail!("the suite's list of images has no {image}");
    }
    Ok(names)
}

/// The last part of the path, without the tag.
fn name(reference: &str) -> Option<&str> {
    reference.rsplit('/').next()?.split(':').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "I1121 listing images\nregistry.example/pause:3.10\nregistry.example:5000/e2e/busybox:1.37-2\n\
                        other.example/busybox:1.36\nregistry.example/pause:3.10\nregistry.example/pause-not:1\n";

    #[test]
    fn lines_of_a_log_are_no_images_and_doubles_count_once() {
        assert_eq!(parse(LIST).len(), 4);
    }

    #[test]
    fn an_image_that_must_stay_out_of_reach_is_not_made() {
        let wanted = parse("gcr.io/k8s-authenticated-test/agnhost:2.6\nregistry.example/agnhost:2.55\n");
        assert_eq!(all(&wanted, "agnhost").unwrap(), ["registry.example/agnhost:2.55"]);
    }

    #[test]
    fn an_image_is_found_by_its_whole_name_in_every_registry() {
        let wanted = parse(LIST);
        assert_eq!(all(&wanted, "busybox").unwrap().len(), 2);
        assert_eq!(all(&wanted, "pause").unwrap(), ["registry.example/pause:3.10"]);
        assert!(all(&wanted, "nginx").unwrap_err().to_string().contains("nginx"));
    }
}

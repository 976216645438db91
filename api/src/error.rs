//! Errors as text for operators.

/// `error` with all its causes, separated by colons, as the message of an API client alone is often no more than "connect". A cause
/// that the text already contains is left out, as some errors repeat their causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn every_cause_is_there_once() {
        let inner = Layer { text: "refused", source: None };
        let middle = Layer { text: "connect: refused", source: Some(Box::new(inner)) };
        let outer = Layer { text: "list pods", source: Some(Box::new(middle)) };
        assert_eq!(chain(&outer), "list pods: connect: refused");
    }
}

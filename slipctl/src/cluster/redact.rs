//! Takes secrets out of text that leaves the cluster.

/// Words whose value is a secret, in lower case.
const SECRET: [&str; 6] = ["token", "password", "passwd", "secret", "privkey", "client-key-data"];
/// In place of a secret.
const GONE: &str = "(left out)";

/// `text` without private keys, and without the values of words that end with one of [`SECRET`].
pub(super) fn redacted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.lines() {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
            out.push_str(GONE);
            out.push('\n');
        }
        if !in_key {
            out.push_str(&without_values(line));
            out.push('\n');
        }
        if line.contains("-----END") && line.contains("PRIVATE KEY") {
            in_key = false;
        }
    }
    out
}

/// A line with the values behind `word=`, `word: ` and `"word":` left out.
fn without_values(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let mut cuts = Vec::new();
    for word in SECRET {
        for (at, _) in lower.match_indices(word) {
            let rest = &line[at + word.len()..];
            let sign = rest.trim_start_matches(['"', '\'', '_', '-']).trim_start();
            if !sign.starts_with(['=', ':']) {
                continue;
            }
            let behind = sign.trim_start_matches(['=', ':', ' ', '"', '\'']);
            let start = line.len() - behind.len();
            let end = behind.find(['"', '\'', ',', ' ', '}']).map_or(line.len(), |length| start + length);
            if end > start {
                cuts.push((start, end));
            }
        }
    }
    cuts.sort_unstable();
    let (mut out, mut from) = (String::new(), 0);
    for (start, end) in cuts {
        if start >= from {
            out.push_str(&line[from..start]);
            out.push_str(GONE);
            from = end;
        }
    }
    out.push_str(&line[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_and_the_rest_stays() {
        let text = "k8s-api-token=\"abc.def\", k8s-api-server=\"10.0.0.1\"\n  SLIPSTREAM_API_TOKEN: abc\n\
                    {\"token\": \"abc\", \"mtu\": 1400}\n-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n\
                    the tokens of agents are short-lived\n";
        let clean = redacted(text);
        assert!(!clean.contains("abc"), "{clean}");
        for kept in ["k8s-api-server=\"10.0.0.1\"", "\"mtu\": 1400", "the tokens of agents are short-lived"] {
            assert!(clean.contains(kept), "{clean}");
        }
    }
}

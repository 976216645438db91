use super::*;

fn refused(words: &[&str]) -> String {
    Args::try_parse_from([&["slipctl"], words].concat()).unwrap_err().to_string()
}

#[test]
fn wrong_words_are_refused_with_the_value_and_what_would_be_right() {
    for (words, wrong, right) in [
        (vec!["flows", "--limit", "0"], "'0'", "at least 1"),
        (vec!["flows", "--limit", "many"], "'many'", "whole number"),
        (vec!["top", "--interval", "fast"], "'fast'", "500ms"),
        (vec!["top", "--interval", "1ms"], "'1ms'", "100ms"),
        (vec!["path", "node", "fast"], "'fast'", "`auto`, `ebpf` or `ovs`"),
        (vec!["path", "service", "shop/web", "auto"], "'auto'", "`ebpf` or `ovs`"),
        (vec!["compare"], "not provided", "<SERVICE>"),
        (vec!["compare", "shop/web", "--seconds", "2"], "2 is not in", "3..=300"),
        (vec!["status", "-o", "xml"], "'xml'", "json"),
        (vec!["audit"], "not provided", "<PROTO> <SRC:PORT> <DST:PORT>"),
        (vec!["audit", "tcp", "1.2.3.4:1"], "3 values required", "2 were provided"),
        (vec!["audit", "tcp", "1.2.3.4:1", "1.2.3.4:2", "--all"], "cannot be used with", "--all"),
    ] {
        let error = refused(&words);
        assert!(error.contains(wrong) && error.contains(right), "{words:?}: {error}");
    }
}

#[test]
fn an_audit_that_found_a_difference_is_told_apart_from_one_that_could_not_decide() {
    let code = |different, undecided| {
        audit_code(&serde_json::json!({"different": different, "undecided": undecided}))
    };
    assert_eq!(code(1, 1), ExitCode::from(4));
    assert_eq!(code(0, 1), ExitCode::from(5));
    assert_eq!(code(0, 0), ExitCode::from(0));
}

#[test]
fn the_form_of_output_may_stand_before_and_behind_the_command() {
    for words in [["slipctl", "-o", "json", "status"], ["slipctl", "status", "-o", "json"]] {
        assert_eq!(Args::try_parse_from(words).unwrap().output, Output::Json);
    }
}

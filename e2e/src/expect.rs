//! What clients must see, and waiting until they do.

use std::fmt;
use std::time::{Duration, Instant};

use testbed::cluster::Bed;
use testbed::exec;
use testbed::tools::{Answer, Attempt};
use testbed::traffic::{Dial, Place, dial, summary};

/// What a set of attempts must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Every answer is one of these (`NAME CLIENT`), and each of these is given.
    All(Vec<String>),
    /// Every answer is one of these.
    OneOf(Vec<String>),
    /// All answers are equal, and one of these.
    Same(Vec<String>),
    /// No answer at all: the packets were dropped.
    Dropped,
    /// The connection was refused.
    Refused,
}

impl Expect {
    /// Exactly this answer.
    #[must_use]
    pub(crate) fn only(answer: &str) -> Self {
        Self::All(vec![answer.to_owned()])
    }

    /// Judges; both verdicts come with what was seen.
    pub(crate) fn judge(&self, attempts: &[Attempt]) -> Result<String, String> {
        let seen = summary(attempts);
        let replies: Vec<&str> = attempts
            .iter()
            .filter_map(|a| match &a.answer {
                Answer::Reply(text) => Some(text.as_str()),
                Answer::Err(_) => None,
            })
            .collect();
        let all_replied = !attempts.is_empty() && replies.len() == attempts.len();
        let within = |set: &[String]| all_replied && replies.iter().all(|r| set.iter().any(|s| s == r));
        let all_failed = |with: &str| {
            !attempts.is_empty()
                && attempts.iter().all(|a| matches!(&a.answer, Answer::Err(reason) if reason == with))
        };
        let good = match self {
            Self::All(set) => within(set) && set.iter().all(|s| replies.contains(&s.as_str())),
            Self::OneOf(set) => within(set),
            Self::Same(set) => within(set) && replies.windows(2).all(|w| w[0] == w[1]),
            Self::Dropped => all_failed("timed out"),
            Self::Refused => all_failed("refused"),
        };
        if good { Ok(seen) } else { Err(format!("{seen}; expected {self}")) }
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(set) => write!(f, "{}", set.join(" and ")),
            Self::OneOf(set) => write!(f, "{}", set.join(" or ")),
            Self::Same(set) => write!(f, "always the same of {}", set.join(" or ")),
            Self::Dropped => write!(f, "no answer"),
            Self::Refused => write!(f, "refused"),
        }
    }
}

/// Asks until the outcome is as expected or the time is over, as a cluster settles after a change. Returns the
/// last attempts with the verdict.
pub(crate) fn settle(
    bed: &Bed,
    place: &Place,
    what: Dial,
    expect: &Expect,
    limit: Duration,
) -> (Vec<Attempt>, Result<String, String>) {
    let end = Instant::now() + exec::patient(limit);
    loop {
        let (attempts, verdict) = match dial(bed, place, what) {
            Ok(attempts) => {
                let verdict = expect.judge(&attempts);
                (attempts, verdict)
            }
            Err(error) => (Vec::new(), Err(format!("{error:#}"))),
        };
        if verdict.is_ok() || Instant::now() >= end {
            return (attempts, verdict);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(answers: &[&str]) -> Vec<Attempt> {
        answers
            .iter()
            .map(|a| Attempt {
                answer: match a.strip_prefix("ERR ") {
                    Some(reason) => Answer::Err(reason.into()),
                    None => Answer::Reply((*a).into()),
                },
                ms: 1.0,
            })
            .collect()
    }

    #[test]
    fn all_backends_must_answer_and_nobody_else() {
        let both = Expect::All(vec!["a 1".into(), "b 1".into()]);
        assert!(both.judge(&attempts(&["a 1", "b 1", "a 1"])).is_ok());
        assert!(both.judge(&attempts(&["a 1", "a 1"])).is_err());
        assert!(both.judge(&attempts(&["a 1", "b 1", "c 1"])).is_err());
        assert!(both.judge(&attempts(&["a 1", "b 1", "ERR timed out"])).is_err());
        assert!(both.judge(&[]).is_err());
    }

    #[test]
    fn dropped_is_not_refused() {
        assert!(Expect::Dropped.judge(&attempts(&["ERR timed out"])).is_ok());
        assert!(Expect::Dropped.judge(&attempts(&["ERR refused"])).is_err());
        assert!(Expect::Dropped.judge(&attempts(&["ERR timed out", "a 1"])).is_err());
        assert!(Expect::Dropped.judge(&[]).is_err());
        assert!(Expect::Refused.judge(&attempts(&["ERR refused"])).is_ok());
    }

    #[test]
    fn the_same_backend_must_answer_every_time() {
        let same = Expect::Same(vec!["a 1".into(), "b 1".into()]);
        assert!(same.judge(&attempts(&["b 1", "b 1"])).is_ok());
        assert!(same.judge(&attempts(&["b 1", "a 1"])).is_err());
    }
}

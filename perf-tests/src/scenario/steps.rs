//! The agent's own split of its last ADDs by step.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::record::Series;

/// Where the agent of this host answers.
const AGENT: &str = "127.0.0.1:9410";

/// One call, as the agent shows it.
#[derive(Debug, Deserialize)]
pub(crate) struct Call {
    command: String,
    container: String,
    code: u32,
    steps: Vec<(String, f64)>,
}

/// The agent's last calls.
pub(crate) fn last_calls() -> Result<Vec<Call>> {
    let mut stream = TcpStream::connect(AGENT).with_context(|| format!("node agent at {AGENT}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /debug/adds HTTP/1.0\r\nHost: agent\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the node agent gave no HTTP answer")?;
    if !head.starts_with("HTTP/1.0 200") && !head.starts_with("HTTP/1.1 200") {
        bail!("node agent: {}", head.lines().next().unwrap_or_default());
    }
    serde_json::from_str(body).context("/debug/adds")
}

/// One series for each step of the ADDs of `containers`, and one for the steps that are ours alone (`ours`).
pub(crate) fn series(calls: &[Call], containers: &[String], title: &str, ours: &[&str]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let mut alone = Series::new(format!("{title}: ours alone ({})", ours.join(" + ")), "ms");
    for call in
        calls.iter().filter(|c| c.command == "ADD" && c.code == 0 && containers.contains(&c.container))
    {
        let mut sum = 0.0;
        for (step, ms) in &call.steps {
            if ours.contains(&step.as_str()) {
                sum += ms;
            }
            let name = format!("{title}: {step}");
            match all.iter_mut().find(|s| s.name == name) {
                Some(known) => known.samples.push(*ms),
                None => {
                    let mut new = Series::new(name, "ms");
                    new.samples.push(*ms);
                    all.push(new);
                }
            }
        }
        alone.samples.push(sum);
    }
    if !ours.is_empty() {
        all.push(alone);
    }
    all
}

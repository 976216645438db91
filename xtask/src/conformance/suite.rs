//! One run of the upstream suite: starts ginkgo on the cluster, follows its console and reads its report.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::cluster::Cluster;
use super::report::{self, Console, Spec, State};
use crate::{exec, paths};

/// The specs to run, and how.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) focus: &'a [String],
    pub(super) skip: &'a [String],
    /// Number of specs that run at the same time.
    pub(super) processes: u8,
    pub(super) nodes: u8,
    /// The whole run ends after this time, as a failure.
    pub(super) limit: Duration,
    /// Whether a failed spec logs what is in its namespace. That takes time.
    pub(super) explain: bool,
}

/// Runs the suite; all its files are in `directory`. Returns the selected specs, and the duration of the run.
pub(super) fn run(cluster: &Cluster, order: &Order<'_>, directory: &Path) -> Result<(Vec<Spec>, Duration)> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let programs = paths::cache()?.join("k8s");
    let output = directory.join("output.txt");
    let mut file = File::create(&output).with_context(|| format!("cannot write {}", output.display()))?;
    let begin = Instant::now();
    let mut child = cluster
        .command(&programs.join("ginkgo"))
        .args(arguments(order, directory))
        .arg(programs.join("e2e.test"))
        .arg("--")
        .args(suite_arguments(order, &cluster.kubeconfig()?, &programs))
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file.try_clone()?)
        .spawn()
        .context("cannot start the suite")?;
    let pipe = child.stdout.take().context("no pipe")?;
    let mut console = Console::default();
    let mut told = Vec::new();
    for line in BufReader::new(pipe).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        writeln!(file, "{line}")?;
        if let Some((state, seconds, name)) = console.line(&line) {
            exec::say(report::line(state, seconds, &name));
            told.push(name);
        }
    }
    child.wait()?;
    let took = begin.elapsed();
    let json = fs::read_to_string(directory.join(JSON))
        .with_context(|| format!("the suite left no report; see {}", output.display()))?;
    let specs = report::parse(&json)?;
    for spec in &specs {
        if !told.contains(&spec.name) {
            exec::say(report::line(spec.state, spec.seconds, &spec.name));
        }
        if spec.state != State::Passed {
            exec::say(format_args!("{:20}{}", "", first_words(&spec.message)));
        }
    }
    keep_failures(&specs, &directory.join("failed"))?;
    Ok((specs, took))
}

const JSON: &str = "ginkgo.json";

fn arguments(order: &Order<'_>, directory: &Path) -> Vec<String> {
    let mut arguments: Vec<String> = vec![
        "-v".into(),
        "--no-color".into(),
        "--silence-skips".into(),
        "--output-interceptor-mode=none".into(),
        // With one process ginkgo's console has another format, and specs mostly wait anyway.
        format!("--procs={}", order.processes.max(2)),
        format!("--timeout={}s", order.limit.as_secs()),
        format!("--output-dir={}", directory.display()),
        format!("--json-report={JSON}"),
        "--junit-report=junit.xml".into(),
    ];
    arguments.extend(order.focus.iter().map(|e| format!("--focus={e}")));
    arguments.extend(order.skip.iter().map(|e| format!("--skip={e}")));
    arguments
}

fn suite_arguments(order: &Order<'_>, kubeconfig: &Path, programs: &Path) -> Vec<String> {
    vec![
        "--provider=skeleton".into(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--kubectl-path={}", programs.join("kubectl").display()),
        format!("--num-nodes={}", order.nodes),
        "--prepull-images=false".into(),
        // Logs of the nodes would be fetched by SSH.
        "--disable-log-dump".into(),
        format!("--dump-logs-on-failure={}", order.explain),
    ]
}

/// The beginning of a message, on one line.
fn first_words(message: &str) -> String {
    let words: Vec<_> = message.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}

/// Writes one file for each failed spec.
fn keep_failures(specs: &[Spec], directory: &Path) -> Result<()> {
    for spec in specs.iter().filter(|s| s.state == State::Failed) {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path: PathBuf = directory.join(file_name(&spec.name));
        let text = format!(
            "{}\n{:.1} s\n\n{}\n\n{}\n",
            spec.name,
            spec.seconds,
            spec.message.trim(),
            spec.log.trim()
        );
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The name of a spec, converted to a file name.
fn file_name(spec: &str) -> String {
    let plain: String = spec.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let words: Vec<_> = plain.split('-').filter(|w| !w.is_empty()).collect();
    let name: String = words.join("-").chars().take(150).collect();
    name + ".txt"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_has_a_file_name_without_special_characters() {
        assert_eq!(file_name("[sig-network] DNS: should /etc/hosts"), "sig-network-DNS-should-etc-hosts.txt");
        assert!(file_name(&"x".repeat(400)).len() < 255);
    }

    #[test]
    fn every_focus_and_skip_is_an_argument_of_its_own() {
        let order = Order {
            focus: &["a b".into(), "c".into()],
            skip: &["d".into()],
            processes: 1,
            nodes: 2,
            limit: Duration::from_secs(60),
            explain: true,
        };
        let arguments = arguments(&order, Path::new("/x"));
        for wanted in ["--focus=a b", "--focus=c", "--skip=d", "--procs=2", "--timeout=60s"] {
            assert!(arguments.iter().any(|a| a == wanted), "{wanted}");
        }
    }
}

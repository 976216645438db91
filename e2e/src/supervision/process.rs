//! A process whose tasks and threads a test may end by name, which programs built for tests let it do.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use testbed::cluster::Bed;
use testbed::cluster::config::{AGENT_PORT, CONTROLLER_PORT};
use testbed::exec;

/// How long the process may take to end once a part of it has.
const END: Duration = Duration::from_secs(10);
/// How long it may take to be ready again. A new controller waits for the lease of the old one.
const BACK: Duration = Duration::from_secs(30);

/// One of them.
pub(super) struct Process<'a> {
    bed: &'a Bed,
    host: String,
    process: &'static str,
    port: u16,
}

impl<'a> Process<'a> {
    /// The agent of a node.
    pub(super) fn agent(bed: &'a Bed, node: &str) -> Self {
        Self { bed, host: node.to_owned(), process: "node-agent", port: AGENT_PORT }
    }

    /// The controller.
    pub(super) fn controller(bed: &'a Bed) -> Self {
        Self { bed, host: "central".to_owned(), process: "controller", port: CONTROLLER_PORT }
    }

    pub(super) fn name(&self) -> &'static str {
        self.process
    }

    /// The names of its tasks and threads. A process that was built without the feature `test-hooks` does not tell.
    pub(super) fn tasks(&self) -> Result<Vec<String>> {
        let page = self.bed.page(&self.host, self.port, "/test/tasks");
        let page =
            page.with_context(|| format!("tasks of the {}, by its feature `test-hooks`", self.process))?;
        serde_json::from_str(&page).with_context(|| format!("/test/tasks: {page}"))
    }

    /// Ends one, and sees the process end with an error that names it. Says how it ended.
    pub(super) fn end(&self, task: &str) -> Result<String> {
        let log = self.bed.config().log(&self.host, self.process);
        let read = fs::metadata(&log).map_or(0, |log| log.len());
        let mut post = self.bed.host(&self.host).network_command("curl")?;
        let url = format!("http://{}:{}/test/end?task={task}", Ipv4Addr::LOCALHOST, self.port);
        post.args(["--silent", "--show-error", "--fail", "--request", "POST", &url]);
        let answer = exec::output(&mut post);
        let how = exec::retry(END, "the process ends", || {
            let list = self.bed.host(&self.host).processes()?;
            let found = list.into_iter().find(|process| process.name == self.process);
            let process = found.with_context(|| format!("{} was never started", self.process))?;
            match (process.pid, process.end) {
                (None, Some(end)) => Ok(end),
                _ => bail!("it runs on; the request: {answer:?}"),
            }
        })?;
        ensure!(how != "exit code 0", "{} ended as if all were well", self.process);
        let said = fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
        let said = said.get(usize::try_from(read)?..).unwrap_or_default();
        ensure!(
            said.contains(&format!("`{task}` ended")),
            "it ended ({how}) without a word of `{task}`: {}",
            said.lines().next_back().unwrap_or_default()
        );
        Ok(how)
    }

    /// Starts it again and waits until it is ready. Says how long that took.
    pub(super) fn start_again(&self) -> Result<Duration> {
        let begin = Instant::now();
        self.bed.host(&self.host).restart(self.process)?;
        exec::retry(BACK, "it is ready again", || {
            self.bed.host(&self.host).check_running(self.process)?;
            self.bed.page(&self.host, self.port, "/readyz")
        })?;
        Ok(begin.elapsed())
    }
}

//! `cluster-bench` on real nodes: with the rights that it prints and no others it measures every path; whatever ends it, nothing is left.
//! Needs root, `cargo xtask setup`, `cargo xtask image --traffic` and the program `cluster-bench` beside `testbed`.

mod browser;
mod cli;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use cli::{Up, eventually, run, succeed};
use testbed::exec;

const NAME: &str = "real-perf";
/// Of runs by the administrator, who may make it.
const OWN: &str = "slipstream-perf-tests";
/// Of the run with the printed rights.
const GIVEN: &str = "given";

fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_testbed")).parent().expect("a directory").to_path_buf()
}

/// The program in the network of the control plane, from which the API server is reached. It says its process identifier first.
fn bench(kubeconfig: &Path, args: &[&str]) -> Command {
    let program = programs().join("cluster-bench");
    assert!(program.exists(), "{} is missing: cargo build -p cluster-bench", program.display());
    let (verb, rest) = args.split_first().expect("a verb");
    let mut command = exec::command(env!("CARGO_BIN_EXE_testbed"));
    command.args([
        "--name",
        NAME,
        "exec",
        "--network",
        "central",
        "--",
        "sh",
        "-c",
        "echo $$; exec \"$@\"",
        "sh",
    ]);
    command.arg(program).arg(verb).arg("--kubeconfig").arg(kubeconfig).args(rest);
    command
}

fn finished(kubeconfig: &Path, args: &[&str]) -> (Output, String) {
    let out = bench(kubeconfig, args).output().expect("it starts");
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out, text)
}

/// A run that is under way.
struct Running {
    child: Child,
    pid: String,
}

impl Running {
    fn start(kubeconfig: &Path, out: &Path) -> Self {
        let args =
            ["run", "--tests", "tcp-rr", "--paths", "pod-ip,cluster-ip", "--out", &out.display().to_string()];
        let mut command = bench(kubeconfig, &args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut pid = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut pid).expect("a process identifier");
        Self { child, pid: pid.trim().to_owned() }
    }

    /// Waits until its client measures.
    fn measures(&self) {
        eventually(NAME, "the client of a run", || {
            let phase =
                ["kubectl", "-n", OWN, "get", "pod", "client-pod-1", "-o", "jsonpath={.status.phase}"];
            run(NAME, &phase).stdout == b"Running"
        });
    }

    fn end(mut self) -> (bool, String) {
        let mut text = String::new();
        self.child.stderr.as_mut().expect("a pipe").read_to_string(&mut text).expect("what it says");
        (self.child.wait().expect("it ends").success(), text)
    }
}

fn nothing_is_left() {
    let namespaces = succeed(NAME, &["kubectl", "get", "namespaces", "-o", "name"]);
    assert!(!namespaces.contains(OWN), "{namespaces}");
    let label = "-lapp.kubernetes.io/managed-by=slipstream-perf-tests";
    assert_eq!(succeed(NAME, &["kubectl", "get", "pods,services", "-A", label, "-o", "name"]), "");
}

/// A kubeconfig of the service account that the printed objects make.
fn with_printed_rights(admin: &Path, directory: &Path) -> PathBuf {
    let (out, _) = finished(admin, &["run", "--print-rbac", "--namespace", GIVEN]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (_, yaml) = text.split_once('\n').expect("objects after the process identifier");
    let (objects, kubeconfig) = (directory.join("rbac.yaml"), directory.join("kubeconfig"));
    fs::write(&objects, yaml).expect("a file");
    succeed(NAME, &["kubectl", "apply", "-f", &objects.display().to_string()]);
    let token = succeed(NAME, &["kubectl", "-n", GIVEN, "create", "token", "slipstream-perf-tests"]);
    fs::copy(admin, &kubeconfig).expect("a copy");
    let at = format!("--kubeconfig={}", kubeconfig.display());
    succeed(
        NAME,
        &["kubectl", &at, "config", "set-credentials", "given", &format!("--token={}", token.trim())],
    );
    succeed(NAME, &["kubectl", &at, "config", "set-context", "--current", "--user=given"]);
    kubeconfig
}

/// Looks at the page of a run in a browser: everything fits, and bars are drawn.
fn shows_its_report(run: &Path, rows: usize) {
    let page = run.join("report.html");
    for width in [1280, 400] {
        let looked = browser::look(&page, width);
        assert_eq!(looked.problems, Vec::<String>::new(), "{width} pixels wide: {looked:#?}");
        // Of each test a picture of rates, and of those with times one of times.
        assert!(looked.drawn >= 3 && looked.texts > rows, "{looked:?}");
        assert!(width < 1000 || looked.wide == 0, "{} tables must be scrolled", looked.wide);
    }
    let size = (1280, 3000);
    let [light, dark] = [false, true].map(|dark| browser::screenshot(&page, size, dark));
    for (pixels, paper, ink, bar) in [
        (&light, [0xff, 0xff, 0xff], [0x1b, 0x1f, 0x24], [0x4c, 0x8d, 0xd6]),
        (&dark, [0x12, 0x16, 0x1b], [0xe6, 0xed, 0xf3], [0x3f, 0x7f, 0xc4]),
    ] {
        let [paper, ink, bar] = [paper, ink, bar].map(|colour| browser::count(pixels, colour));
        assert!(paper > pixels.len() / 2, "the background: {paper} of {}", pixels.len());
        assert!(ink > 2_000, "text: {ink} pixels");
        assert!(bar > 20_000, "bars: {bar} pixels");
    }
}

/// The same with names as long as Kubernetes allows, and words without a space.
fn says_the_longest_names(run: &Path, mut document: serde_json::Value) {
    let long = |length: usize| "very-long-name.".repeat(length).chars().take(length).collect::<String>();
    document["cluster"]["plugin"] = long(200).into();
    document["cluster"]["evidence"] = serde_json::json!([long(300)]);
    document["cluster"]["measured"][0]["name"] = long(253).into();
    document["not_measured"] = serde_json::json!([{"path": "node-port", "test": null, "reason": format!("no <such> & {}", long(400))}]);
    let other = run.with_extension("long");
    fs::create_dir(&other).expect("a directory");
    fs::write(other.join("run.json"), document.to_string()).expect("a result");
    let report = exec::command(programs().join("cluster-bench")).arg("report").arg(&other).output();
    let report = report.expect("it starts");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    for width in [1280, 400] {
        let looked = browser::look(&other.join("report.html"), width);
        assert_eq!(looked.problems, Vec::<String>::new(), "{width} pixels wide: {looked:#?}");
    }
}

#[test]
fn a_live_cluster_is_measured_with_few_rights_and_nothing_is_left() {
    succeed(NAME, &["down"]);
    let _up = Up(NAME);
    succeed(NAME, &["up", "--runtime", "containerd", "--datapath", "ebpf", "--nodes", "2"]);
    eventually(NAME, "two nodes without taints", || {
        let taints = ["kubectl", "get", "nodes", "-o", "jsonpath={.items[*].spec.taints}"];
        succeed(NAME, &taints).trim().is_empty()
    });
    let directory = tempfile::tempdir().expect("a directory");
    let admin = PathBuf::from(succeed(NAME, &["kubeconfig"]).trim());
    let out = |name: &str| directory.path().join(name);

    // An image that no node has, and no registry gives.
    let (ended, text) = finished(
        &admin,
        &[
            "run",
            "--ready-seconds",
            "6",
            "--paths",
            "pod-ip",
            "--image",
            "localhost/none:1",
            "--out",
            &out("none").display().to_string(),
        ],
    );
    assert!(
        !ended.status.success() && text.contains("server-other") && text.contains("localhost/none:1"),
        "{text}"
    );
    nothing_is_left();

    let archive = programs().parent().expect("target").join("image/slipstream-traffic.tar");
    assert!(archive.exists(), "{} is missing: cargo xtask image --traffic", archive.display());
    for node in ["n1", "n2"] {
        succeed(NAME, &["image", node, &archive.display().to_string()]);
    }

    // The rights that are printed suffice for everything, and the namespace that was given stays.
    let given = with_printed_rights(&admin, directory.path());
    let measured = out("measured").display().to_string();
    let short = ["--quick", "--rounds", "16", "--tests", "tcp-rr,udp-rate", "--namespace", GIVEN];
    let (ended, text) = finished(&given, &[&["run", "--out", &measured][..], &short].concat());
    assert!(ended.status.success(), "{text}");
    let read = fs::read_to_string(out("measured").join("run.json")).expect("a result");
    let document: serde_json::Value = serde_json::from_str(&read).expect("JSON");
    assert_eq!(document["not_measured"], serde_json::json!([]), "{text}");
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 12, "{text}");
    for row in rows {
        assert!(row["per_second"]["median"].as_f64().is_some_and(|rate| rate > 0.0), "{row:#}");
    }
    let plugin = document["cluster"]["plugin"].as_str().expect("a plugin");
    assert!(plugin.contains("Slipstream"), "{plugin}");
    let report = fs::read_to_string(out("measured").join("report.md")).expect("a report");
    assert!(report.contains("| tcp-rr | cluster-ip |"), "{report}");
    let page = fs::read_to_string(out("measured").join("report.html")).expect("a page");
    assert!(page.contains("<svg") && page.contains("<td>host-cluster-ip</td>"), "{page}");
    shows_its_report(&out("measured"), rows.len());
    says_the_longest_names(&out("measured"), document);
    assert_eq!(succeed(NAME, &["kubectl", "-n", GIVEN, "get", "pods,services", "-o", "name"]), "");
    // Not one right more than that.
    let (ended, text) = finished(&given, &["run", "--out", &out("refused").display().to_string()]);
    assert!(!ended.status.success() && text.contains("namespaces") && text.contains("cannot get"), "{text}");
    let ended =
        exec::command(programs().join("cluster-bench")).args(["compare", &measured, &measured]).output();
    let ended = ended.expect("it starts");
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(text.contains("host-pod-same") && !text.contains("WORSE") && !text.contains("better"), "{text}");
    assert!(ended.status.success(), "{text}");

    // Interrupted, and with a server that is killed.
    let interrupted = Running::start(&admin, &out("interrupted"));
    interrupted.measures();
    assert!(exec::command("kill").args(["-INT", &interrupted.pid]).status().expect("kill starts").success());
    let (good, text) = interrupted.end();
    assert!(!good && text.contains("interrupted by SIGINT"), "{text}");
    nothing_is_left();

    let robbed = Running::start(&admin, &out("robbed"));
    robbed.measures();
    succeed(NAME, &["kubectl", "-n", OWN, "delete", "pod", "server-other", "--wait=false"]);
    let begin = Instant::now();
    let (good, text) = robbed.end();
    assert!(!good && text.contains("server-other"), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(40), "{text}");
    nothing_is_left();

    // Killed: a second run is refused until `clean` has removed what is left.
    let killed = Running::start(&admin, &out("killed"));
    killed.measures();
    assert!(exec::command("kill").args(["-KILL", &killed.pid]).status().expect("kill starts").success());
    killed.end();
    let (ended, text) = finished(&admin, &["run", "--out", &out("second").display().to_string()]);
    assert!(!ended.status.success() && text.contains("of another run"), "{text}");
    let (ended, text) = finished(&admin, &["clean"]);
    assert!(ended.status.success() && text.contains("pod client-pod-1"), "{text}");
    nothing_is_left();

    // The other node is lost, and with it the kubelet that would end its pods.
    let left = Running::start(&admin, &out("left"));
    left.measures();
    for service in ["kubelet", "containerd"] {
        succeed(NAME, &["kill", "n2", service]);
    }
    succeed(NAME, &["kubectl", "delete", "node", "n2"]);
    let begin = Instant::now();
    let (good, text) = left.end();
    assert!(!good && text.contains("node n2 was removed"), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(60), "{text}");
    nothing_is_left();

    succeed(NAME, &["down"]);
    assert_eq!(succeed(NAME, &["leftovers"]), "");
}

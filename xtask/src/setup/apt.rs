//! apt: installs packages, and reads which mirror the system uses.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::exec;

/// Installs packages. Refreshes apt's lists only if they lack one of them.
pub(super) fn install(packages: &[String]) -> Result<()> {
    let known = |p: &String| {
        exec::output(exec::command("apt-cache").args(["show", "--no-all-versions", p]))
            .is_ok_and(|o| !o.trim().is_empty())
    };
    if !packages.iter().all(known) {
        exec::run(exec::command("apt-get").args(["update", "-q"]))?;
    }
    let install = || {
        exec::run(
            exec::command("apt-get")
                .env("DEBIAN_FRONTEND", "noninteractive")
                .args(["install", "-q", "-y", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"])
                .args(packages),
        )
    };
    // Outdated lists name packages that the mirror no longer has.
    install().or_else(|_| {
        exec::run(exec::command("apt-get").args(["update", "-q"]))?;
        install()
    })
}

/// One archive that the system's apt reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Archive {
    pub(super) uri: String,
    pub(super) suites: Vec<String>,
    pub(super) keyring: Option<String>,
}

/// The URI of the mirror from which the system gets Debian itself.
pub(super) fn debian_mirror() -> Result<String> {
    let mut all = Vec::new();
    let mut read = |path: &Path| {
        let Ok(text) = fs::read_to_string(path) else { return };
        match path.extension().and_then(|e| e.to_str()) {
            Some("sources") => all.extend(parse_deb822(&text)),
            Some("list") => all.extend(parse_one_line(&text)),
            _ => {}
        }
    };
    read(Path::new("/etc/apt/sources.list"));
    let mut parts: Vec<_> =
        fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|e| e.path()).collect();
    parts.sort();
    for part in parts {
        read(&part);
    }
    pick_debian(&all).with_context(|| {
        "no Debian archive in /etc/apt/sources.list or /etc/apt/sources.list.d; \
                          install OVS 3.3 and OVN 23.06 or newer by hand"
    })
}

/// The main archive: its path ends in `/debian`, and it is neither the security archive nor a third party's.
fn pick_debian(archives: &[Archive]) -> Option<String> {
    archives
        .iter()
        .find(|a| {
            a.uri.trim_end_matches('/').ends_with("/debian")
                && !a.suites.iter().any(|s| s.contains("security"))
        })
        .map(|a| a.uri.clone())
}

/// The stanza format of `*.sources` files: deb822(5).
fn parse_deb822(text: &str) -> Vec<Archive> {
    let mut archives = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza.lines().filter(|l| !l.starts_with('#')).find_map(|l| {
                l.split_once(':').filter(|(k, _)| k.trim().eq_ignore_ascii_case(name)).map(|(_, v)| v.trim())
            })
        };
        if field("Enabled").is_some_and(|v| v.eq_ignore_ascii_case("no")) {
            continue;
        }
        if !field("Types").is_some_and(|t| t.split_whitespace().any(|t| t == "deb")) {
            continue;
        }
        let suites: Vec<String> =
            field("Suites").unwrap_or_default().split_whitespace().map(Into::into).collect();
        for uri in field("URIs").unwrap_or_default().split_whitespace() {
            archives.push(Archive {
                uri: uri.to_owned(),
                suites: suites.clone(),
                keyring: field("Signed-By").map(Into::into),
            });
        }
    }
    archives
}

/// The one-line format of `*.list` files: sources.list(5).
fn parse_one_line(text: &str) -> Vec<Archive> {
    let mut archives = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb").filter(|r| r.starts_with([' ', '\t'])).map(str::trim_start)
        else {
            continue;
        };
        let (options, rest) = match rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            Some((options, rest)) => (options, rest),
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let (Some(uri), Some(suite)) = (words.next(), words.next()) else { continue };
        let keyring = options.split_whitespace().find_map(|o| o.strip_prefix("signed-by=")).map(Into::into);
        archives.push(Archive { uri: uri.to_owned(), suites: vec![suite.to_owned()], keyring });
    }
    archives
}

/// The packages of another release, separate from the system: with its own lists and an empty status file; nothing is
/// installed.
pub(super) struct OtherRelease {
    state: PathBuf,
}

impl OtherRelease {
    /// Reads the lists of `suite` into the directory `state`.
    pub(super) fn open(state: &Path, suite: &str) -> Result<Self> {
        const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is not there; install debian-archive-keyring");
        }
        let this = Self { state: state.to_owned() };
        for dir in [&state.join("lists/partial"), &this.archives().join("partial"), &state.join("etc")] {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let list = format!("deb [signed-by={KEYRING}] {} {suite} main\n", debian_mirror()?);
        fs::write(state.join("sources.list"), list)?;
        fs::write(state.join("status"), "")?;
        this.run("apt-get", &["update", "-q"])?;
        Ok(this)
    }

    /// Directory of downloaded packages.
    pub(super) fn archives(&self) -> PathBuf {
        self.state.join("archives")
    }

    /// Downloads packages with all their dependencies.
    pub(super) fn download(&self, packages: &[&str]) -> Result<()> {
        let verb = ["-d", "-q", "-y", "--no-install-recommends", "install"];
        self.run("apt-get", &[&verb, packages].concat()).map(drop)
    }

    /// Downloads packages without their dependencies.
    pub(super) fn download_only(&self, packages: &[&str]) -> Result<()> {
        self.run("apt-get", &[&["-q", "download"], packages].concat()).map(drop)
    }

    /// The names of a package's dependencies.
    pub(super) fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let said = self.run("apt-cache", &["depends", package])?;
        Ok(said.lines().filter_map(|l| l.trim().strip_prefix("Depends: ")).map(Into::into).collect())
    }

    fn run(&self, program: &str, verb: &[&str]) -> Result<String> {
        let mut command = exec::command(program);
        command.env("DEBIAN_FRONTEND", "noninteractive").current_dir(self.archives());
        for (key, value) in [
            ("Dir::Etc::sourcelist", self.state.join("sources.list").as_path()),
            ("Dir::Etc::sourceparts", Path::new("-")),
            ("Dir::State::lists", self.state.join("lists").as_path()),
            ("Dir::State::status", self.state.join("status").as_path()),
            ("Dir::Cache::archives", self.archives().as_path()),
            ("Dir::Cache::pkgcache", Path::new("")),
            ("Dir::Cache::srcpkgcache", Path::new("")),
            ("Debug::NoLocking", Path::new("true")),
            // The unprivileged download user may not have access to a home directory.
            ("APT::Sandbox::User", Path::new("root")),
        ] {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        exec::output(command.args(verb))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_read_from_one_line_sources() {
        let all = parse_one_line(
            "# deb http://old/debian x main\ndeb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main # c\n\
             deb-src http://mirror.example/debian bookworm main\ndeb\thttps://third.example/apt stable main\n",
        );
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].keyring.as_deref(), Some("/k.gpg"));
        assert_eq!(pick_debian(&all).as_deref(), Some("http://mirror.example/debian"));
    }

    #[test]
    fn the_mirror_is_read_from_deb822_sources() {
        let all = parse_deb822(
            "Types: deb deb-src\n# URIs: http://no/debian\nURIs: https://mirror.example/debian/\nSuites: trixie trixie-updates\n\n\
             Types: deb\nURIs: http://mirror.example/debian-security\nSuites: trixie-security\n",
        );
        assert_eq!(all.len(), 2);
        assert_eq!(pick_debian(&all).as_deref(), Some("https://mirror.example/debian/"));
    }

    #[test]
    fn a_disabled_stanza_and_the_security_archive_are_not_the_mirror() {
        let all = parse_deb822(
            "Enabled: no\nTypes: deb\nURIs: http://a/debian\nSuites: trixie\n\nTypes: deb\nURIs: http://b/debian\nSuites: trixie-security\n",
        );
        assert_eq!(pick_debian(&all), None);
    }
}

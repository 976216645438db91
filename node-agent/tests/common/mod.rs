//! Namespaces for tests: the test's own "node", and "pods" that live as long as a value.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread in a network and mount namespace of its own, inside a current-thread tokio runtime. Needs root.
pub(crate) fn on_a_node<F, Fut>(test: F)
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let thread = std::thread::Builder::new().name("node".to_owned()).spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("root is needed for network namespaces");
        let flags = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).expect("private mounts");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.unwrap().join() {
        std::panic::resume_unwind(panic);
    }
}

/// A pod's network namespace, held by a parked thread; gone when dropped.
pub(crate) struct Pod {
    path: PathBuf,
    stop: Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>,
}

impl Pod {
    pub(crate) fn new() -> Self {
        let (told, tell) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let body = move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
            told.send(path).unwrap();
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("pod".to_owned()).spawn(body).unwrap();
        Self { path: tell.recv().unwrap().into(), stop: Some((stop, thread)) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.stop.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// Sets the loopback interface of the test's node up.
pub(crate) async fn lo_up() {
    let netlink = node_agent::kernel::link::Netlink::open().unwrap();
    let lo = netlink.get("lo").await.unwrap();
    netlink.set_up(lo.index, "lo").await.unwrap();
}

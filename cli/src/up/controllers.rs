//! `--controllers`: stock kube-controller-manager and kube-scheduler beside the embedded API server, as processes that
//! are restarted when they exit and stopped with this one.

mod binaries;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::config::Kubeconfig;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tombolo_runtime::{Backoff, BackoffConfig, Drain, Tasks};

pub(super) use binaries::Binaries;

/// Time from SIGTERM to SIGKILL.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// After running this long a component counts as healthy, and its restart backoff is reset.
const SETTLED: Duration = Duration::from_secs(60);

/// Backoff before a component is restarted.
const RESTART: BackoffConfig =
    BackoffConfig { first: Duration::from_secs(1), max: Duration::from_secs(30), factor: 2.0 };

/// Controllers of kube-controller-manager that stay off: the embedded API server approves and signs itself, and does
/// not give away its authority's key.
const CONTROLLERS: &str = "*,-certificatesigningrequest-approving-controller,\
                           -certificatesigningrequest-signing-controller";

/// Files of the embedded API server that the components use.
pub(super) struct ClusterFiles {
    /// The administrator's kubeconfig.
    pub(super) kubeconfig: PathBuf,
    /// Folder with `ca.crt`, `sa.key` and the administrator's pair.
    pub(super) pki: PathBuf,
}

/// Starts both components; their logs are in `<data_dir>/controllers`.
///
/// # Errors
/// When their files cannot be written.
pub(super) fn start(
    binaries: &Binaries,
    files: &ClusterFiles,
    data_dir: &Path,
    tasks: &Tasks,
    drain: &Drain,
) -> Result<()> {
    let folder = data_dir.join("controllers");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let files = &ClusterFiles { kubeconfig: by_files(files, &folder)?, pki: files.pki.clone() };
    let components = [
        Component {
            name: "kube-controller-manager",
            program: binaries.controller_manager.clone(),
            arguments: controller_manager(files),
            log: folder.join("kube-controller-manager.log"),
        },
        Component {
            name: "kube-scheduler",
            program: binaries.scheduler.clone(),
            arguments: scheduler(files, &folder)?,
            log: folder.join("kube-scheduler.log"),
        },
    ];
    for component in components {
        println!("{}: {}", component.name, component.program.display());
        tasks.spawn(component.name, component.run(drain.clone()));
    }
    Ok(())
}

/// A kubeconfig that refers to the administrator's certificate and key by path: client-go reloads such files every five
/// minutes, but reads data inside a kubeconfig only at start.
fn by_files(files: &ClusterFiles, folder: &Path) -> Result<PathBuf> {
    let mut config = Kubeconfig::read_from(&files.kubeconfig)
        .with_context(|| format!("cannot use {}", files.kubeconfig.display()))?;
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        let file = |name: &str| Some(files.pki.join(name).display().to_string());
        (user.client_certificate_data, user.client_key_data) = (None, None);
        (user.client_certificate, user.client_key) = (file("admin.crt"), file("admin.key"));
    }
    let (path, content) = (folder.join("kubeconfig"), serde_json::to_vec_pretty(&config)?);
    tombolo_runtime::files::replace(&path, &content, tombolo_runtime::files::PRIVATE)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn controller_manager(files: &ClusterFiles) -> Vec<OsString> {
    let path = |name: &str, path: &Path| {
        let mut argument = OsString::from(format!("--{name}="));
        argument.push(path);
        argument
    };
    vec![
        path("kubeconfig", &files.kubeconfig),
        path("root-ca-file", &files.pki.join("ca.crt")),
        path("service-account-private-key-file", &files.pki.join("sa.key")),
        "--kube-api-content-type=application/json".into(),
        format!("--controllers={CONTROLLERS}").into(),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ]
}

/// kube-scheduler reads the content type only from a configuration file.
fn scheduler(files: &ClusterFiles, folder: &Path) -> Result<Vec<OsString>> {
    let config = folder.join("kube-scheduler.json");
    let content = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": files.kubeconfig, "contentType": "application/json"},
        "leaderElection": {"leaderElect": false},
    });
    fs::write(&config, format!("{content:#}\n"))
        .with_context(|| format!("cannot write {}", config.display()))?;
    let mut argument = OsString::from("--config=");
    argument.push(&config);
    Ok(vec![argument, "--secure-port=0".into()])
}

/// A program that runs until the drain.
struct Component {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
}

impl Component {
    async fn run(self, drain: Drain) -> io::Result<()> {
        let mut backoff = Backoff::new(RESTART);
        loop {
            let started = Instant::now();
            let mut child = self.spawn()?;
            let ended = tokio::select! {
                ended = child.wait() => ended?,
                () = drain.started() => return stop(&mut child).await,
            };
            if started.elapsed() >= SETTLED {
                backoff.reset();
            }
            let pause = backoff.next_delay(&mut rand::rng());
            tracing::warn!(log = %self.log.display(), ?pause, "{} exited ({ended}); restarting", self.name);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = drain.started() => return Ok(()),
            }
        }
    }

    /// Starts it through `tombolo component`. It leads its own process group, so Ctrl-C in the terminal reaches only
    /// this program, which stops its parts in order.
    fn spawn(&self) -> io::Result<Child> {
        let log = self.open_log()?;
        Command::new(std::env::current_exe()?)
            .args(["component", "--parent", &std::process::id().to_string(), "--"])
            .arg(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// Opens a new log; the previous one is kept beside it, older ones are not.
    fn open_log(&self) -> io::Result<File> {
        if self.log.exists() {
            fs::rename(&self.log, self.log.with_extension("log.before"))?;
        }
        File::create(&self.log)
    }
}

/// Sends SIGTERM, and SIGKILL after [`STOP_GRACE`].
async fn stop(child: &mut Child) -> io::Result<()> {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(id) = id {
        // Fails if the process has just ended; then there is nothing to stop.
        let _ = kill_process(id, Signal::TERM);
    }
    match tokio::time::timeout(STOP_GRACE, child.wait()).await {
        Ok(ended) => ended.map(drop),
        Err(_) => child.kill().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_read_the_certificate_from_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("kubeconfig");
        let user = json!({"client-certificate-data": "YQ==", "client-key-data": "Yg=="});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "YQ=="}}],
            "users": [{"name": "c", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        fs::write(&own, config.to_string()).expect("written");
        let (below, pki) = (folder.path().join("controllers"), folder.path().join("pki"));
        fs::create_dir(&below).expect("made");
        let path = by_files(&ClusterFiles { kubeconfig: own, pki: pki.clone() }, &below).expect("written");
        let written: serde_json::Value =
            serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON");
        let user = json!({"client-certificate": pki.join("admin.crt"), "client-key": pki.join("admin.key")});
        assert_eq!(written["users"], json!([{"name": "c", "user": user}]));
        assert_eq!((&written["clusters"], &written["contexts"]), (&config["clusters"], &config["contexts"]));
    }
}

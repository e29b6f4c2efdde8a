//! Runs containerd without systemd and without a registry, for a stock kubelet: all its files in one folder, one image,
//! a bridge.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sha2::{Digest, Sha256};
use tombolo_testkit::{Child, wait_for_value};

use crate::world::DEADLINE;

/// The image of test pods: a shell and the usual tools. Nothing is pulled.
pub const IMAGE: &str = "docker.io/local/box:1";

/// The image of sandboxes, with the same content.
const PAUSE: &str = "local/pause:1";

/// The containerd namespace of a kubelet's containers.
const NAMESPACE: &str = "k8s.io";

/// Programs that must be installed, as Debian packages provide them.
const PROGRAMS: [&str; 6] = ["containerd", "containerd-shim-runc-v2", "ctr", "runc", "ip", "tar"];

/// Folders where distributions install the CNI plugins.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Tools of the image.
const TOOLS: [&str; 5] = ["sh", "sleep", "cat", "test", "echo"];

/// The reason why containers cannot run on this machine; none if they can.
#[must_use]
pub fn missing() -> Option<String> {
    let absent = |program: &&&str| find(program).is_none();
    if let Some(program) = PROGRAMS.iter().chain(&["busybox"]).find(absent) {
        return Some(format!("{program} is not installed: `cargo xtask test --install` installs it as root"));
    }
    if plugins().is_none() {
        return Some(
            "the CNI plugins are not installed: `cargo xtask test --install` installs them".to_owned(),
        );
    }
    (!rustix::process::geteuid().is_root()).then(|| "containers need root".to_owned())
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Packages install some programs in folders that only root's PATH contains.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn plugins() -> Option<&'static str> {
    PLUGINS.into_iter().find(|folder| Path::new(folder).join("bridge").is_file())
}

/// A running containerd. Its containers end when it is dropped.
#[derive(Debug)]
pub struct Containers {
    process: Option<Child>,
    folder: PathBuf,
    bridge: String,
}

impl Containers {
    /// Starts containerd with its files in a folder, and loads the image. `number` distinguishes instances on one
    /// machine.
    ///
    /// # Errors
    /// When a program is missing or fails; the message contains its last output.
    pub async fn start(folder: &Path, number: u8) -> Result<Self> {
        let bridge = format!("tombolo{number}");
        let mut containers = Self { process: None, folder: folder.to_owned(), bridge };
        fs::create_dir_all(folder.join("cni"))?;
        fs::write(folder.join("cni/10-bridge.conflist"), containers.network(number).to_string())?;
        let plugins = plugins().context("no CNI plugins")?;
        fs::write(folder.join("containerd.toml"), containers.settings(plugins))?;
        let mut command = Command::new(find("containerd").context("no containerd")?);
        command.arg("--config").arg(folder.join("containerd.toml"));
        containers.process = Some(Child::spawn("containerd", folder, &mut command)?);
        wait_for_value("containerd", DEADLINE, || {
            let answer = containers.ctr(&["version"]).map_err(|error| format!("{error:#}"));
            async move { answer }
        })
        .await;
        let image = make_image(folder)?;
        containers.ctr(&["images", "import", &image.display().to_string()])?;
        Ok(containers)
    }

    /// Path of its socket, for a kubelet.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Process ids of running containers whose command line contains this text.
    ///
    /// # Errors
    /// When containerd does not answer.
    pub fn running(&self, text: &str) -> Result<Vec<u32>> {
        let tasks = self.ctr(&["tasks", "ls"])?;
        let ids = tasks.lines().skip(1).filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let id: u32 = words.next()?.parse().ok()?;
            (words.next()? == "RUNNING").then_some(id)
        });
        Ok(ids.filter(|id| command_line(*id).contains(text)).collect())
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(find("ctr").context("no ctr")?);
        command.arg("--address").arg(self.socket()).args(["--namespace", NAMESPACE]).args(arguments);
        run(&mut command)
    }

    fn network(&self, number: u8) -> serde_json::Value {
        let subnet = format!("{}/24", Ipv4Addr::new(10, 89, number, 0));
        json!({"cniVersion": "0.4.0", "name": self.bridge, "plugins": [{
            "type": "bridge", "bridge": self.bridge, "isGateway": true, "ipam": {
                "type": "host-local", "dataDir": self.folder.join("ipam"), "ranges": [[{"subnet": subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }]})
    }

    fn settings(&self, plugins: &str) -> String {
        let [root, state, socket, cni, opt] = ["root", "state", "containerd.sock", "cni", "opt"]
            .map(|name| self.folder.join(name).display().to_string());
        // Without the required capability, no sandbox starts with an adjusted OOM score.
        format!(
            r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
"#
        )
    }

    /// Ends what outlives containerd: shims and their containers, mounts, and the bridge.
    fn clean(&mut self) {
        self.process = None;
        let socket = self.socket().display().to_string();
        let ids = || fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = ids().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let shims: Vec<u32> = numbers.filter(|id| command_line(*id).contains(&socket)).collect();
        for shim in shims {
            // Children first: a container's first process ends the others with it.
            let children =
                fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap_or_default();
            children.split_whitespace().filter_map(|id| id.parse().ok()).for_each(kill);
            kill(shim);
        }
        unmount(&self.folder);
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).output();
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        self.clean();
    }
}

fn kill(id: u32) {
    if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = kill_process(id, Signal::KILL);
    }
}

/// Mounts below a folder, innermost first.
fn mounts(folder: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let paths = text.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = paths.filter(|path| path.starts_with(folder)).collect();
    below.sort();
    below.reverse();
    below
}

/// Unmounts everything below a folder, so that it can be removed.
pub fn unmount(folder: &Path) {
    for mount in mounts(folder) {
        let _ = Command::new("umount").arg("--lazy").arg(mount).output();
    }
}

fn command_line(id: u32) -> String {
    let bytes = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// A docker-archive with one layer: a static busybox under the names of its tools.
fn make_image(folder: &Path) -> Result<PathBuf> {
    let (layer, image) = (folder.join("layer"), folder.join("image"));
    fs::create_dir_all(layer.join("bin"))?;
    fs::create_dir_all(&image)?;
    fs::copy(find("busybox").context("no busybox")?, layer.join("bin/busybox"))?;
    for tool in TOOLS {
        symlink("busybox", layer.join("bin").join(tool))?;
    }
    let archive =
        |from: &Path, to: &Path| run(Command::new("tar").arg("-C").arg(from).arg("-cf").arg(to).arg("."));
    archive(&layer, &image.join("layer.tar"))?;
    let digest = hex::encode(Sha256::digest(fs::read(image.join("layer.tar"))?));
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    })
    .to_string();
    let name = format!("{}.json", hex::encode(Sha256::digest(&config)));
    fs::write(image.join(&name), config)?;
    let tags = [IMAGE.to_owned(), format!("docker.io/{PAUSE}")];
    let manifest = json!([{"Config": name, "RepoTags": tags, "Layers": ["layer.tar"]}]);
    fs::write(image.join("manifest.json"), manifest.to_string())?;
    let path = folder.join("image.tar");
    archive(&image, &path)?;
    Ok(path)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout);
    ensure!(text.is_ok(), "{command:?}: the output is not UTF-8");
    Ok(text?)
}

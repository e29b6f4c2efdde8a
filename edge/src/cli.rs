//! The command line of edgecore.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use tombolo_proto::ids::NodeId;
use tombolo_runtime::signals::Signals;
use tombolo_runtime::{drain, files, telemetry};

use crate::components::{Document, Machine, document};
use crate::config::{CloudConfig, Config, JOIN_PORT, host_and_port};
use crate::identity::EnrollOptions;
use crate::localapi::{KUBECONFIG_FILE, LocalCredentials};
use crate::{App, JoinOptions, join};

/// Default path of the settings file.
const CONFIG_FILE: &str = "/etc/tombolo/edgecore.yaml";

/// How long work that cannot be cancelled may continue after everything else has ended.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);
/// Environment variable that may hold the join token.
const TOKEN_VARIABLE: &str = "TOMBOLO_TOKEN";

/// Maximum bytes read from a token file; a token has about 150.
const TOKEN_FILE_LEN_MAX: u64 = 64 * 1024;

/// Default data folder; `deploy/edge/edgecore.service` creates its parent.
const DATA_DIR: &str = "/var/lib/tombolo/edge";

/// Time for the agent to stop after a signal.
const DRAIN_GRACE: Duration = Duration::from_secs(10);

/// Threads that serve everything but the store's writer: an edge node has few clients.
const WORKERS: usize = 2;

/// The agent of one edge node: joins it to the cloud, keeps what it needs, serves it locally.
#[derive(Debug, Parser)]
#[command(name = "edgecore", version)]
struct Arguments {
    /// Settings file
    #[arg(long, global = true, default_value = CONFIG_FILE)]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<EdgecoreCommand>,
}

#[derive(Debug, Subcommand)]
enum EdgecoreCommand {
    /// Get this node's certificate with a join token
    Join(JoinArguments),
    /// Print the kubeconfig of the local API
    Kubeconfig,
    /// Print the settings with which kubelet and kube-proxy run on this node
    KubeletConfig(KubeletConfigArguments),
    /// Print the status of the running agent
    Status,
}

#[derive(Debug, Args)]
struct JoinArguments {
    /// File with the token that `tombolo token create` printed; `-` reads it from standard input [default: the
    /// environment variable TOMBOLO_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The token itself; every user of this machine can see it in the process list
    #[arg(long, conflicts_with = "token_file")]
    token: Option<String>,
    /// Join endpoint of the cloud, HOST or HOST:PORT; also creates the settings file if there is none
    #[arg(long)]
    cloud: Option<String>,
    /// Name of this node, when there is no settings file yet [default: the host's name]
    #[arg(long)]
    node_name: Option<String>,
    /// Data folder, when there is no settings file yet
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct KubeletConfigArguments {
    /// Only this document, instead of all
    #[arg(long, value_enum)]
    of: Option<Document>,
    #[command(flatten)]
    machine: Machine,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    let result = runtime.context("cannot start").and_then(|runtime| {
        tombolo_proto::set_hash_secret(rand::random())?;
        let result = runtime.block_on(execute(arguments));
        // A read from a disk that does not respond must not keep the process from exiting.
        runtime.shutdown_timeout(SHUTDOWN_MAX);
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(std::io::stderr(), "edgecore: {}", tombolo_runtime::sentence(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn execute(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        None => run(&arguments.config).await,
        Some(EdgecoreCommand::Join(options)) => join_cloud(&arguments.config, options).await,
        Some(EdgecoreCommand::Kubeconfig) => print(&kubeconfig(&Config::load(&arguments.config)?)?),
        Some(EdgecoreCommand::KubeletConfig(options)) => {
            print(&kubelet_config(&Config::load(&arguments.config)?, &options)?)
        }
        Some(EdgecoreCommand::Status) => print(&status(&Config::load(&arguments.config)?)?),
    }
}

async fn run(path: &Path) -> anyhow::Result<()> {
    let _filter = telemetry::init(telemetry::Format::default(), "info")?;
    tombolo_runtime::raise_open_files();
    let (trigger, drain) = drain::channel(DRAIN_GRACE);
    let signals = Signals::register()?;
    let agent = App::build(Config::load(path)?).await?;
    tracing::info!(node = %agent.node(), local_api = %agent.local_api_addr(), "edgecore runs");
    agent.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    tokio::select! {
        result = agent.run(drain) => Ok(result?),
        () = signals.drive(trigger) => bail!("stopped by a second signal"),
    }
}

async fn join_cloud(path: &Path, options: JoinArguments) -> anyhow::Result<()> {
    let token = join_token(&options, std::env::var(TOKEN_VARIABLE).ok())?;
    let made = !path.exists();
    let mut config = if made { first_config(&options)? } else { Config::load(path)? };
    if let Some(cloud) = options.cloud.as_deref().filter(|_| !made) {
        config.cloud.join = endpoint(cloud)?;
    }
    let enroll = EnrollOptions { endpoint: config.cloud.join.clone(), node: config.node_name.clone(), token };
    join(&JoinOptions { enroll, data_dir: config.data_dir.clone() }).await?;
    if made {
        let text = serde_saphyr::to_string(&config)?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        files::replace(path, text.as_bytes(), files::PUBLIC)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&format!("node {} has joined; start it with: {}\n", config.node_name, start_command(path)))
}

/// The command that starts the agent with these settings; omits `--config` for the default path.
fn start_command(path: &Path) -> String {
    match path == Path::new(CONFIG_FILE) {
        true => "edgecore".to_owned(),
        false => format!("edgecore --config {}", path.display()),
    }
}

/// The join token from the file, argument or environment variable. Warns if it was given as an argument.
fn join_token(options: &JoinArguments, variable: Option<String>) -> anyhow::Result<String> {
    let text = match (&options.token_file, &options.token, variable) {
        (Some(path), ..) if path.as_os_str() == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().take(TOKEN_FILE_LEN_MAX).read_to_string(&mut text);
            read.context("cannot read the token from standard input")?;
            text
        }
        (Some(path), ..) => {
            let mut text = String::new();
            let file = std::fs::File::open(path);
            let read = file.and_then(|file| file.take(TOKEN_FILE_LEN_MAX).read_to_string(&mut text));
            read.with_context(|| format!("cannot read the token in {}", path.display()))?;
            text
        }
        (None, Some(token), _) => {
            let warning = "edgecore: the join token is visible in ps to every user of this machine: prefer --token-file or TOMBOLO_TOKEN";
            // Nothing can be done about a closed standard error.
            let _ = writeln!(std::io::stderr(), "{warning}");
            token.clone()
        }
        (None, None, Some(text)) => text,
        (None, None, None) => bail!("no join token: use --token-file FILE or set TOMBOLO_TOKEN"),
    };
    ensure!(!text.trim().is_empty(), "the join token is empty: create one with `tombolo token create`");
    Ok(text.trim().to_owned())
}

/// Settings for a node that has none yet.
fn first_config(options: &JoinArguments) -> anyhow::Result<Config> {
    let cloud = options
        .cloud
        .as_deref()
        .context("there is no settings file yet: give the cloud's address with --cloud")?;
    let endpoint = endpoint(cloud)?;
    let (host, _) = host_and_port("--cloud", &endpoint)?;
    let name = match &options.node_name {
        Some(name) => name.clone(),
        None => {
            std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read the host's name")?
        }
    };
    let node = NodeId::parse(&name.trim().to_lowercase()).context("choose a node name with --node-name")?;
    let mut config = Config::new(node, options.data_dir.clone().unwrap_or_else(|| DATA_DIR.into()));
    config.cloud = CloudConfig { join: endpoint.clone(), ..CloudConfig::at(host) };
    config.validate()?;
    Ok(config)
}

/// `HOST` or `HOST:PORT` as `HOST:PORT`.
fn endpoint(cloud: &str) -> anyhow::Result<String> {
    if host_and_port("--cloud", cloud).is_ok() {
        return Ok(cloud.to_owned());
    }
    let with_port = CloudConfig::at(cloud).join;
    host_and_port("--cloud", &with_port)
        .with_context(|| format!("the default port is {JOIN_PORT}; give another one as HOST:PORT"))?;
    Ok(with_port)
}

/// The kubeconfig that the agent wrote at its last start, or the one that it will write.
fn kubeconfig(config: &Config) -> anyhow::Result<String> {
    let path = config.data_dir.join(KUBECONFIG_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let credentials = LocalCredentials::load(&config.data_dir)?;
            Ok(credentials.kubeconfig(&config.node_name, config.local_api.https))
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The settings of kubelet and kube-proxy as YAML documents, each under a comment with its file name.
fn kubelet_config(config: &Config, arguments: &KubeletConfigArguments) -> anyhow::Result<String> {
    let local: Value = serde_json::from_str(&kubeconfig(config)?)?;
    let mut text = String::new();
    for which in Document::ALL {
        if arguments.of.is_some_and(|only| only != which) {
            continue;
        }
        let Some(made) = document(which, config, &arguments.machine, &local) else {
            let why = "kube-proxy reads from the wrapper, which is off: set wrapper.address";
            ensure!(arguments.of.is_none(), why);
            text.push_str(&format!("# {}: {why}\n", which.file()));
            continue;
        };
        let path = arguments.machine.folder.join(which.file());
        if arguments.of.is_none() {
            text.push_str("---\n");
        }
        text.push_str(&format!("# {}\n{}", path.display(), serde_saphyr::to_string(&made)?));
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}

/// Status of the running agent, read from its admin endpoints.
///
/// # Errors
/// When they are off or do not answer.
pub fn status(config: &Config) -> anyhow::Result<String> {
    let admin =
        config.admin.context("the status comes from the admin endpoints, which are off: set admin")?;
    let ready = fetch(admin, "/readyz").with_context(|| format!("no agent answers at {admin}"))?;
    let metrics = fetch(admin, "/metrics")?;
    let own = metrics.lines().filter_map(|line| line.strip_prefix("tombolo_edge_"));
    let lines: Vec<&str> = own.filter(|line| !line.is_empty()).collect();
    Ok(format!("node: {}\nready: {}\n{}\n", config.node_name, ready.trim(), lines.join("\n")))
}

fn fetch(address: std::net::SocketAddr, path: &str) -> anyhow::Result<String> {
    let timeout = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(1024 * 1024).read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    Ok(body.to_owned())
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join_arguments(words: &[&str]) -> JoinArguments {
        let words = ["edgecore", "join"].iter().chain(words);
        match Arguments::try_parse_from(words).unwrap().command {
            Some(EdgecoreCommand::Join(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_comes_from_a_file_or_the_environment_and_as_an_argument_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, " a.b.c.d\n").unwrap();
        let path = file.display().to_string();
        let from = |words: &[&str], variable: Option<&str>| {
            join_token(&join_arguments(words), variable.map(str::to_owned)).map_err(|error| error.to_string())
        };
        assert_eq!(from(&["--token-file", &path], Some("other")), Ok("a.b.c.d".to_owned()));
        assert_eq!(from(&[], Some("e.f.g.h\n")), Ok("e.f.g.h".to_owned()));
        assert_eq!(from(&["--token", "i.j.k.l"], None), Ok("i.j.k.l".to_owned()));
        assert!(from(&[], None).unwrap_err().contains("--token-file"));
        assert!(from(&[], Some(" ")).unwrap_err().contains("empty"));
        assert!(from(&["--token-file", "/nowhere/token"], None).unwrap_err().contains("/nowhere/token"));
        let both = ["edgecore", "join", "--token", "x", "--token-file", "y"];
        assert!(Arguments::try_parse_from(both).is_err());
    }

    #[test]
    fn settings_written_by_join_are_read_by_the_agent() {
        let join = Arguments::try_parse_from(["edgecore", "join", "--cloud", "hub.example"]).unwrap();
        let agent = Arguments::try_parse_from(["edgecore"]).unwrap();
        assert_eq!(join.config, agent.config);
        assert_eq!(start_command(&join.config), "edgecore");
        assert_eq!(start_command(Path::new("x.yaml")), "edgecore --config x.yaml");
        let made =
            first_config(&join_arguments(&["--cloud", "hub.example", "--node-name", "edge-a"])).unwrap();
        let text = "nodeName: edge-a\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("edgecore.yaml");
        std::fs::write(&file, text).unwrap();
        assert_eq!(made.data_dir, Config::load(&file).unwrap().data_dir, "the folder that is the default");
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_host_is_enough_to_join() {
        assert_eq!(endpoint("hub").unwrap(), "hub:10002");
        assert_eq!(endpoint("hub:7").unwrap(), "hub:7");
        assert_eq!(endpoint("fd00::1").unwrap(), "[fd00::1]:10002");
        assert!(endpoint("").is_err());
        let options = JoinArguments {
            token_file: None,
            token: None,
            cloud: Some("hub".to_owned()),
            node_name: Some("edge-a".to_owned()),
            data_dir: Some("/data".into()),
        };
        let config = first_config(&options).unwrap();
        assert_eq!((config.cloud.quic.as_str(), config.cloud.join.as_str()), ("hub:10001", "hub:10002"));
    }

    #[test]
    fn settings_of_components_are_documents_under_the_names_of_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(NodeId::parse("edge-a").unwrap(), folder.path());
        let machine = Machine {
            folder: "/etc/here".into(),
            container_runtime: "unix:///c.sock".to_owned(),
            cluster_dns: Vec::new(),
            cluster_cidr: None,
        };
        let all = KubeletConfigArguments { of: None, machine };
        let text = kubelet_config(&config, &all).unwrap();
        let documents: Vec<&str> = text.split("---\n").skip(1).collect();
        assert_eq!(documents.len(), Document::ALL.len());
        for (text, which) in documents.into_iter().zip(Document::ALL) {
            assert!(text.starts_with(&format!("# /etc/here/{}\n", which.file())), "{text}");
            let read: Value = serde_saphyr::from_str(text).unwrap();
            assert!(read["kind"].is_string(), "{read}");
            let only = KubeletConfigArguments { of: Some(which), machine: all.machine.clone() };
            assert_eq!(kubelet_config(&config, &only).unwrap(), text);
        }
        let mut off = config.clone();
        off.wrapper.address = None;
        let text = kubelet_config(&off, &all).unwrap();
        assert_eq!(text.matches("---\n").count(), 2, "{text}");
        assert!(
            text.contains("# kube-proxy.yaml: kube-proxy reads from the wrapper, which is off"),
            "{text}"
        );
        let only = KubeletConfigArguments { of: Some(Document::KubeProxy), machine: all.machine };
        let refusal = kubelet_config(&off, &only).unwrap_err().to_string();
        assert!(refusal.contains("wrapper.address"), "{refusal}");
    }
}

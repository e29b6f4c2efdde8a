//! A server for tests, and plain requests to any Kubernetes API server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use http::{Method, Request};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tombolo_apiserver::{Bound, Embedded, EmbeddedError, Options};
use tombolo_runtime::drain::{self, Trigger};

/// Time limit for any step, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Editor of `kubectl edit`.
const EDITOR: &str = "sed -i s/before/after/";

/// A running embedded server. [`Self::stop`] returns its data directory.
pub(crate) struct Server {
    pub(crate) dir: TempDir,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) address: std::net::SocketAddr,
    trigger: Trigger,
    running: JoinHandle<Result<(), EmbeddedError>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    pub(crate) async fn start_in(dir: TempDir) -> Self {
        Self::start_as(dir, |_| ()).await
    }

    /// Starts a server whose store has this many bytes.
    pub(crate) async fn start_with_store(len: u64) -> Self {
        Self::start_as(tempfile::tempdir().unwrap(), |options| options.store_len_max = len).await
    }

    async fn start_as(dir: TempDir, set: impl Fn(&mut Options)) -> Self {
        // A program that another test is starting holds the locks of its parent for a moment.
        let bound = tombolo_testkit::wait_for_value("an embedded server", DEADLINE, || async {
            let mut options = Options::new(dir.path().join("data"));
            options.audit_log = Some(dir.path().join("audit.log"));
            set(&mut options);
            match Embedded::start(options).await {
                Err(error @ EmbeddedError::InUse(_)) => Err(error.to_string()),
                started => Ok(started.unwrap()),
            }
        })
        .await;
        Self::run(dir, bound)
    }

    fn run(dir: TempDir, bound: Bound) -> Self {
        let (trigger, drain) = drain::channel(Duration::from_secs(5));
        let (kubeconfig, address) = (bound.kubeconfig().to_owned(), bound.addr());
        let running = tokio::spawn(bound.run(drain));
        Self { dir, kubeconfig, address, trigger, running }
    }

    /// Stops the server and returns its directory.
    pub(crate) async fn stop(self) -> TempDir {
        self.trigger.start();
        self.running.await.unwrap().unwrap();
        self.dir
    }

    pub(crate) async fn client(&self) -> Client {
        client(&self.kubeconfig).await
    }

    pub(crate) async fn api(&self) -> Api {
        Api { client: self.client().await }
    }

    /// Runs kubectl with the administrator's kubeconfig; `input` is its standard input.
    pub(crate) async fn kubectl(&self, arguments: &[&str], input: &str) -> Output {
        let binary = tombolo_testkit::components().unwrap().binary("kubectl");
        let home = self.dir.path().to_owned();
        let mut command = Command::new(binary);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).env("HOME", home);
        command.env("KUBE_EDITOR", EDITOR);
        let input = input.to_owned();
        tokio::task::spawn_blocking(move || run(command, &input)).await.unwrap()
    }

    /// Like [`Self::kubectl`], but the command must succeed.
    pub(crate) async fn kubectl_ok(&self, arguments: &[&str], input: &str) -> String {
        let output = self.kubectl(arguments, input).await;
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}: {stdout}{stderr}");
        stdout.into_owned()
    }
}

fn run(mut command: Command, input: &str) -> Output {
    use std::io::Write as _;

    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub(crate) async fn client(kubeconfig: &Path) -> Client {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    // Every response is checked, including a 429, so there are no retries.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// Sends plain requests and returns the code and the JSON of the response.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) client: Client,
}

/// One request.
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: String,
}

impl Api {
    pub(crate) async fn send(&self, ask: Ask<'_>) -> (u16, Value) {
        let method: Method = ask.method.parse().unwrap();
        let mut request = Request::builder().method(method).uri(ask.path);
        for (name, value) in ask.headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(ask.body.into_bytes())).unwrap();
        let response = self.client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Ask { method: "GET", path, headers: &[], body: String::new() }).await
    }

    pub(crate) async fn delete(&self, path: &str, options: Value) -> (u16, Value) {
        let headers = [("content-type", "application/json")];
        let body = if options.is_null() { String::new() } else { options.to_string() };
        self.send(Ask { method: "DELETE", path, headers: &headers, body }).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.write("POST", path, "application/json", body).await
    }

    pub(crate) async fn merge(&self, path: &str, body: &Value) -> (u16, Value) {
        self.write("PATCH", path, "application/merge-patch+json", body).await
    }

    async fn write(&self, method: &str, path: &str, media_type: &str, body: &Value) -> (u16, Value) {
        let headers = [("content-type", media_type)];
        self.send(Ask { method, path, headers: &headers, body: body.to_string() }).await
    }

    /// Creates an object. It must be accepted.
    pub(crate) async fn create(&self, path: &str, body: &Value) -> Value {
        let (code, reply) = self.post(path, body).await;
        assert_eq!(code, 201, "POST {path}: {reply}");
        reply
    }

    /// Waits until a path responds with a code. Returns the body.
    pub(crate) async fn wait_code(&self, path: &str, code: u16) -> Value {
        let attempt = || async {
            let (found, body) = self.get(path).await;
            if found == code { Ok(body) } else { Err(format!("{found}: {body}")) }
        };
        tombolo_testkit::wait_for_value(&format!("{path} to answer {code}"), DEADLINE, attempt).await
    }
}

/// Request, code, and the message of a refusal without the parts that differ between servers.
pub(crate) type Answered = (String, u16, String);

/// Fails with all requests to which kube-apiserver and this server respond differently.
pub(crate) fn assert_same_answers(real: &[Answered], own: &[Answered]) {
    let differences: Vec<String> = real
        .iter()
        .zip(own)
        .filter(|(real, own)| real != own)
        .map(|(real, own)| format!("{}\n  real {} {}\n  own  {} {}", real.0, real.1, real.2, own.1, own.2))
        .collect();
    assert!(
        differences.is_empty(),
        "{} of {} differ:\n{}",
        differences.len(),
        real.len(),
        differences.join("\n")
    );
}

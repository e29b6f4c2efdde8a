//! A real control plane: etcd and kube-apiserver with the Node authorizer, RBAC, NodeRestriction and an audit log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::components::{Components, components};
use crate::kube_controllers::{KubeControllers, PROTOBUF};
use crate::process::{Child, free_port};
use crate::wait::wait_for;

mod pki;

const ADMIN_TOKEN: &str = "admintoken";
const START_DEADLINE: Duration = Duration::from_secs(90);

/// What to start beside etcd and kube-apiserver.
#[derive(Debug, Clone, Copy, Default)]
pub struct ControlPlaneOptions {
    /// Run kube-controller-manager: default ServiceAccounts, `kube-root-ca.crt`, garbage collection.
    pub controllers: bool,
    /// Run kube-scheduler, which binds pods to Ready nodes.
    pub scheduler: bool,
    /// Feature gates of kube-apiserver, as in `ConstrainedImpersonation=false`; empty for the defaults.
    pub feature_gates: &'static str,
    /// Run as in production: etcd syncs to its disk, and there is no audit log.
    pub measured: bool,
}

/// A running control plane. All its processes end when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    folder: TempDir,
    binaries: Components,
    feature_gates: &'static str,
    measured: bool,
    etcd_port: u16,
    etcd_peer_port: u16,
    api_port: u16,
    // The drop order: the clients of a server before the server.
    scheduler: Option<Child>,
    controllers: Option<Child>,
    api_server: Option<Child>,
    etcd: Option<Child>,
}

/// One line of the audit log, at the stage `ResponseComplete`.
#[derive(Debug, Clone)]
pub struct AuditEvent {
    /// Authenticated user.
    pub user: String,
    /// User that the request impersonated, if it did.
    pub impersonated: Option<String>,
    /// Verb as the API server names it.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// `resource` or `resource/subresource`; empty for non-resource requests.
    pub resource: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Object name; empty for collections.
    pub name: String,
    /// HTTP status code of the answer.
    pub code: u16,
    /// Path with its query.
    pub path: String,
}

impl AuditEvent {
    /// Whether the request changed something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver and waits until the API is ready.
    ///
    /// # Errors
    /// The binaries are missing or do not become ready. The message contains the last lines of their logs.
    pub async fn start(options: ControlPlaneOptions) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tombolo-control-plane-").tempdir()?;
        pki::write(folder.path())?;
        fs::write(folder.path().join("tokens.csv"), format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
        fs::write(folder.path().join("audit.yaml"), AUDIT_POLICY)?;
        let mut plane = Self {
            folder,
            binaries: components()?,
            feature_gates: options.feature_gates,
            measured: options.measured,
            etcd_port: free_port()?,
            etcd_peer_port: free_port()?,
            api_port: free_port()?,
            scheduler: None,
            controllers: None,
            api_server: None,
            etcd: None,
        };
        fs::write(plane.kubeconfig(), plane.kubeconfig_with_token(ADMIN_TOKEN).to_string())?;
        plane.start_etcd()?;
        plane.start_api_server().await?;
        if options.controllers {
            plane.controllers = Some(plane.kube_controllers().start_controllers(&plane.binaries)?);
        }
        if options.scheduler {
            plane.start_scheduler()?;
        }
        Ok(plane)
    }

    /// Starts kube-scheduler (again).
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_scheduler(&mut self) -> Result<()> {
        self.scheduler = None;
        self.scheduler = Some(self.kube_controllers().start_scheduler(&self.binaries)?);
        Ok(())
    }

    /// Process ids of kube-apiserver and etcd.
    pub fn process_ids(&self) -> impl Iterator<Item = u32> {
        self.api_server.iter().chain(&self.etcd).map(Child::id)
    }

    /// Path of the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    /// `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.api_port)
    }

    /// Folder of this control plane's files: keys, logs, data.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// PEM of the CA that signs the API server's certificate and client certificates.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ca_pem(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("ca.crt"))?)
    }

    /// A kubeconfig whose user has this bearer token.
    #[must_use]
    pub fn kubeconfig_with_token(&self, token: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": self.url(), "certificate-authority": self.folder.path().join("ca.crt")}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
    }

    /// A client with the administrator's credentials.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub async fn admin_client(&self) -> Result<Client> {
        self.client_with_token(ADMIN_TOKEN).await
    }

    /// A client with this bearer token.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub async fn client_with_token(&self, token: &str) -> Result<Client> {
        // Installing the same provider a second time fails, which is fine.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let parsed: Kubeconfig = serde_json::from_value(self.kubeconfig_with_token(token))?;
        let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// Runs kubectl as the administrator.
    ///
    /// # Errors
    /// The program kubectl cannot be started.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.binaries.binary("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig()).env("HOME", self.folder.path());
        command.args(arguments).output().context("run kubectl")
    }

    /// Every completed request in the audit log.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn audit_events(&self) -> Result<Vec<AuditEvent>> {
        let text = fs::read_to_string(self.folder.path().join("audit.log"))?;
        // The last line may be incomplete; the next call reads it.
        Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .map(|line: Value| audit_event(&line))
            .collect())
    }

    /// Starts kube-apiserver (again) on the same port and waits until it is ready.
    ///
    /// # Errors
    /// The server does not become ready.
    pub async fn start_api_server(&mut self) -> Result<()> {
        let child = Child::spawn("kube-apiserver", self.folder.path(), &mut self.api_server_command())?;
        self.api_server = Some(child);
        let client = self.admin_client().await?;
        wait_for("kube-apiserver to be ready", START_DEADLINE, || async {
            let request = http_get("/readyz");
            client.request_text(request).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        self.api_server.as_mut().context("just started")?.check_running()
    }

    /// Kills kube-apiserver.
    pub fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    /// Copies etcd's data, for [`Self::restore`]. etcd is stopped for a moment.
    ///
    /// # Errors
    /// The copy fails or etcd does not start again.
    pub fn snapshot(&mut self) -> Result<TempDir> {
        self.etcd = None;
        let copy = tempfile::tempdir()?;
        copy_folder(&self.etcd_data(), copy.path())?;
        self.start_etcd()?;
        Ok(copy)
    }

    /// Restores an older state and starts etcd and kube-apiserver again: revisions go back.
    ///
    /// # Errors
    /// The copy fails or a server does not start.
    pub async fn restore(&mut self, snapshot: &Path) -> Result<()> {
        self.stop_api_server();
        self.etcd = None;
        fs::remove_dir_all(self.etcd_data())?;
        copy_folder(snapshot, &self.etcd_data())?;
        self.start_etcd()?;
        self.start_api_server().await
    }

    fn etcd_data(&self) -> PathBuf {
        self.folder.path().join("etcd")
    }

    fn start_etcd(&mut self) -> Result<()> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", self.etcd_peer_port);
        let mut command = Command::new(self.binaries.binary("etcd"));
        command.arg("--data-dir").arg(self.etcd_data()).args([
            &format!("--listen-client-urls={client}"),
            &format!("--advertise-client-urls={client}"),
            &format!("--listen-peer-urls={peer}"),
            &format!("--initial-advertise-peer-urls={peer}"),
            &format!("--initial-cluster=default={peer}"),
        ]);
        if !self.measured {
            command.arg("--unsafe-no-fsync");
        }
        self.etcd = Some(Child::spawn("etcd", self.folder.path(), &mut command)?);
        Ok(())
    }

    fn api_server_command(&self) -> Command {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let mut command = Command::new(self.binaries.binary("kube-apiserver"));
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--cert-dir={}", file("certificates")),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--secure-port={}", self.api_port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
            "--allow-privileged".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
        ]);
        if !self.measured {
            command.arg(format!("--audit-log-path={}", file("audit.log")));
            command.arg(format!("--audit-policy-file={}", file("audit.yaml")));
        }
        if !self.feature_gates.is_empty() {
            command.arg(format!("--feature-gates={}", self.feature_gates));
        }
        command
    }

    fn kube_controllers(&self) -> KubeControllers {
        KubeControllers {
            kubeconfig: self.kubeconfig(),
            keys: self.folder.path().to_owned(),
            folder: self.folder.path().to_owned(),
            content_type: PROTOBUF,
            signs: true,
            elects: false,
        }
    }
}

const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\n\
                            rules:\n- level: Metadata\n";

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    let mut request = http::Request::new(Vec::new());
    *request.uri_mut() = path.parse().expect("paths in this file are valid");
    request
}

fn audit_event(line: &Value) -> AuditEvent {
    let text = |pointer: &str| line.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let resource = match text("/objectRef/subresource").as_str() {
        "" => text("/objectRef/resource"),
        subresource => format!("{}/{subresource}", text("/objectRef/resource")),
    };
    let code = line.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default();
    AuditEvent {
        user: text("/user/username"),
        impersonated: line.pointer("/impersonatedUser/username").and_then(Value::as_str).map(str::to_owned),
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource,
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: u16::try_from(code).unwrap_or_default(),
        path: text("/requestURI"),
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    ensure!(to.is_dir(), "copy of {} is not a folder", from.display());
    Ok(())
}

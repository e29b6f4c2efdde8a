//! Authentication: tokens, certificates, impersonation.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use crate::harness::{Api, Ask, DEADLINE, Server};

const CLOUDCORE: &str = "system:serviceaccount:kubeedge:cloudcore";

/// A client without the administrator's certificate.
async fn stranger(server: &Server) -> Api {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config = kube::Config::new(format!("https://{}", server.address).parse().unwrap());
    let admin = kube::config::Kubeconfig::read_from(&server.kubeconfig).unwrap();
    let ca = admin.clusters[0].cluster.as_ref().unwrap().certificate_authority_data.clone().unwrap();
    let pem = STANDARD.decode(ca).unwrap();
    use rustls_pki_types::pem::PemObject as _;
    let der = rustls_pki_types::CertificateDer::from_pem_slice(&pem).unwrap();
    config.root_cert = Some(vec![der.to_vec()]);
    Api { client: kube::Client::try_from(config).unwrap() }
}

async fn with_token(api: &Api, method: &str, path: &str, token: &str) -> (u16, Value) {
    let header = format!("Bearer {token}");
    api.send(Ask { method, path, headers: &[("authorization", &header)], body: String::new() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn token_authenticates_its_account_while_its_pod_exists() {
    let server = Server::start().await;
    let (api, stranger) = (server.api().await, stranger(&server).await);
    api.wait_code("/api/v1/namespaces/default/serviceaccounts/default", 200).await;
    tombolo_testkit::wait_for("role view to be summed up", DEADLINE, || async {
        let (_, role) = api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").await;
        if role["rules"].as_array().is_some_and(|rules| rules.len() > 5) {
            Ok(())
        } else {
            Err(role.to_string())
        }
    })
    .await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = api.create("/api/v1/namespaces/default/pods", &pod).await;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]});
    let request = json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": bound}});
    let reply = api.create("/api/v1/namespaces/default/serviceaccounts/default/token", &request).await;
    let token = reply["status"]["token"].as_str().unwrap().to_owned();
    let pods = "/api/v1/namespaces/default/pods";
    let (code, refused) = with_token(&stranger, "GET", pods, &token).await;
    assert_eq!(code, 403, "known, but not allowed: {refused}");
    assert!(refused["message"].as_str().unwrap().contains("system:serviceaccount:default:default"));
    let grant = json!({"metadata": {"name": "g"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
    api.create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &grant).await;
    assert_eq!(with_token(&stranger, "GET", pods, &token).await.0, 200, "at once");
    let review = json!({"spec": {"token": token}});
    let review = api.create("/apis/authentication.k8s.io/v1/tokenreviews", &review).await;
    assert_eq!(review["status"]["authenticated"], true);
    assert_eq!(review["status"]["user"]["username"], "system:serviceaccount:default:default");
    api.delete(&format!("{pods}/p"), Value::Null).await;
    assert_eq!(with_token(&stranger, "GET", pods, &token).await.0, 401, "its pod is gone");
    assert_eq!(with_token(&stranger, "GET", pods, "garbage").await.0, 401);
    let (code, anonymous) = stranger.get(pods).await;
    assert_eq!(code, 403);
    assert!(anonymous["message"].as_str().unwrap().contains("system:anonymous"), "{anonymous}");
    assert_eq!(stranger.get("/version").await.0, 200, "everybody may read the version");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_gets_a_certificate_and_its_identity() {
    let server = Server::start().await;
    let api = server.api().await;
    let group =
        json!([{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:bootstrappers"}]);
    let role = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
    let grant = json!({"metadata": {"name": "join"}, "subjects": group, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}});
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &grant).await;
    let more = json!({"metadata": {"name": "ask"}, "subjects": grant["subjects"], "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"}});
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &more).await;
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:a");
    let csr = STANDARD.encode(params.serialize_request(&key).unwrap().pem().unwrap());
    let request = json!({"metadata": {"name": "c"}, "spec": {"request": csr, "usages": ["digital signature", "client auth"],
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet"}});
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let headers = [
        ("content-type", "application/json"),
        ("impersonate-user", "system:bootstrap:abc"),
        ("impersonate-group", "system:bootstrappers"),
    ];
    let (code, reply) =
        api.send(Ask { method: "POST", path, headers: &headers, body: request.to_string() }).await;
    assert_eq!(code, 201, "{reply}");
    assert_eq!(reply["spec"]["username"], "system:bootstrap:abc");
    let certificate = tombolo_testkit::wait_for_value("the certificate", DEADLINE, || async {
        let (_, csr) = api.get(&format!("{path}/c")).await;
        csr["status"]["certificate"].as_str().map(str::to_owned).ok_or_else(|| csr["status"].to_string())
    })
    .await;
    let mut kubeconfig = kube::config::Kubeconfig::read_from(&server.kubeconfig).unwrap();
    let user = kubeconfig.auth_infos[0].auth_info.as_mut().unwrap();
    user.client_certificate_data = Some(certificate);
    user.client_key_data = Some(STANDARD.encode(key.serialize_pem()).into());
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
            .await
            .unwrap();
    let node = Api { client: kube::Client::try_from(config).unwrap() };
    let whoami = node.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await;
    assert_eq!(whoami["status"]["userInfo"]["username"], "system:node:a");
    node.create("/api/v1/nodes", &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(node.post("/api/v1/nodes", &json!({"metadata": {"name": "b"}})).await.0, 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn constrained_impersonation_is_audited_as_the_node() {
    let server = Server::start().await;
    let (api, stranger) = (server.api().await, stranger(&server).await);
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": "kubeedge"}})).await;
    api.create("/api/v1/namespaces/kubeedge/serviceaccounts", &json!({"metadata": {"name": "cloudcore"}}))
        .await;
    let role = json!({"metadata": {"name": "hub"}, "rules": [
        {"verbs": ["impersonate:arbitrary-node"], "apiGroups": ["authentication.k8s.io"], "resources": ["nodes"]},
        {"verbs": ["impersonate-on:arbitrary-node:create"], "apiGroups": [""], "resources": ["nodes"]},
    ]});
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
    let grant = json!({"metadata": {"name": "hub"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hub"},
        "subjects": [{"kind": "ServiceAccount", "name": "cloudcore", "namespace": "kubeedge"}]});
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &grant).await;
    let reply =
        api.create("/api/v1/namespaces/kubeedge/serviceaccounts/cloudcore/token", &json!({"spec": {}})).await;
    let bearer = format!("Bearer {}", reply["status"]["token"].as_str().unwrap());
    let send = async |method: &'static str, path: &'static str, name: &str, group: bool| {
        let mut headers = vec![
            ("authorization", bearer.as_str()),
            ("impersonate-user", "system:node:a"),
            ("content-type", "application/json"),
        ];
        if group {
            headers.push(("impersonate-group", "system:nodes"));
        }
        let body = json!({"metadata": {"name": name}}).to_string();
        stranger.send(Ask { method, path, headers: &headers, body }).await
    };
    assert_eq!(send("POST", "/api/v1/nodes", "a", false).await.0, 201);
    assert_eq!(send("POST", "/api/v1/nodes", "b", false).await.0, 403, "NodeRestriction");
    assert_eq!(send("DELETE", "/api/v1/nodes/a", "a", false).await.0, 403, "no right for this verb");
    assert_eq!(send("POST", "/api/v1/nodes", "a", true).await.0, 403, "a group header needs the older right");
    let log = server.dir.path().join("audit.log");
    tombolo_testkit::wait_for("the audit log", DEADLINE, || async {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found = events.into_iter().any(|event| {
            event["impersonatedUser"]["username"] == "system:node:a"
                && event["user"]["username"] == CLOUDCORE
                && event["verb"] == "create"
                && event["responseStatus"]["code"] == 201
        });
        if found { Ok(()) } else { Err(text) }
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_and_aggregated_roles() {
    let server = Server::start().await;
    let api = server.api().await;
    let review = json!({"spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(api.create(path, &review).await["status"]["allowed"], true);
    let grant = json!({"metadata": {"name": "jane"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]});
    api.create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &grant).await;
    let as_jane = async |path: &str| {
        let headers = [("impersonate-user", "jane")];
        api.send(Ask { method: "GET", path, headers: &headers, body: String::new() }).await
    };
    tombolo_testkit::wait_for("the sum of the roles that make up `view`", DEADLINE, || async {
        let (code, refusal) = as_jane("/api/v1/namespaces/default/pods").await;
        if code == 200 { Ok(()) } else { Err(refusal.to_string()) }
    })
    .await;
    let (code, refusal) = as_jane("/api/v1/namespaces/default/secrets").await;
    assert_eq!(code, 403);
    let expected = r#"secrets is forbidden: User "jane" cannot list resource "secrets" in API group "" in the namespace "default""#;
    assert_eq!(refusal["message"], expected);
    let who = json!({"spec": {"user": "jane", "resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}});
    let answer = api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &who).await;
    assert_eq!(answer["status"]["allowed"], true);
    let local = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    assert_eq!(api.create(local, &who).await["status"]["allowed"], true);
    let rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = api.create(rules, &json!({"spec": {"namespace": "default"}})).await;
    assert!(!rules["status"]["resourceRules"].as_array().unwrap().is_empty(), "{rules}");
    server.stop().await;
}

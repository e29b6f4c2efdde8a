//! A world whose cloudcore reads the file that KubeEdge cloudcore prints, edited as operators would.

use serde_json::{Value, json};

use super::{CloudPorts, World};

impl World {
    /// The KubeEdge file with this world's addresses, ports, files and kubeconfig.
    pub(super) fn kubeedge_config(&self, ports: CloudPorts) -> Value {
        let mut config = self.settings.clone();
        let file = |name: &str| json!(self.folder.path().join("pki").join(name));
        config["commonConfig"]["monitorServer"]["bindAddress"] = json!(format!("127.0.0.1:{}", ports.admin));
        config["kubeAPIConfig"]["kubeConfig"] = json!(self.cloud_kubeconfig());
        let hub = &mut config["modules"]["cloudHub"];
        hub["advertiseAddress"] = json!(["127.0.0.1"]);
        hub["tlsCAFile"] = file("rootCA.crt");
        hub["tlsCAKeyFile"] = file("rootCA.key");
        hub["tlsCertFile"] = file("server.crt");
        hub["tlsPrivateKeyFile"] = file("server.key");
        for (listener, port) in [("websocket", ports.websocket), ("quic", ports.quic), ("https", ports.join)]
        {
            hub[listener]["address"] = json!("127.0.0.1");
            hub[listener]["port"] = json!(port);
        }
        config
    }
}

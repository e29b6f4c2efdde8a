//! Join tokens of a world.

use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use tombolo_cloud::bootstrap::{self, ClusterSecrets, NewToken};

use super::{DEADLINE, World};

impl World {
    /// A join token for any name, including that of an existing Node, once cloudcore has its authority.
    ///
    /// # Errors
    /// The reason why there is none yet.
    pub async fn join_token(&self) -> Result<String, String> {
        self.new_token(&NewToken { names: Vec::new(), uses: 10, life: DEADLINE * 10, replace: true }).await
    }

    /// Creates a join token.
    ///
    /// # Errors
    /// The reason why there is none yet.
    pub async fn new_token(&self, token: &NewToken) -> Result<String, String> {
        let authority = hex::encode(Sha256::digest(self.hub_secret("casecret", "cadata").await?));
        let client = self.client().await.map_err(|error| format!("{error:#}"))?;
        let store = ClusterSecrets::new(client, "kubeedge");
        let made = bootstrap::create(&store, &authority, token, SystemTime::now()).await;
        made.map_err(|error| error.to_string())
    }

    /// KubeEdge's shared token, in a world whose settings enable it.
    ///
    /// # Errors
    /// The reason why there is none yet.
    pub async fn shared_token(&self) -> Result<String, String> {
        let token = self.hub_secret("tokensecret", "tokendata").await?;
        String::from_utf8(token).map_err(|error| error.to_string())
    }
}

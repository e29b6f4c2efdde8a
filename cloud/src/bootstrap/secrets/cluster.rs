//! Secrets in the Kubernetes API.

use std::collections::BTreeMap;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};

use super::{SecretData, SecretError, SecretStore, StoredSecret};
use crate::bootstrap::CALL_LIMIT;
use crate::kube::{CallError, is_passing_failure};

/// Secrets of one namespace of a cluster. The namespace is created together with the first Secret.
#[derive(Clone)]
pub struct ClusterSecrets {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for ClusterSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterSecrets").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl ClusterSecrets {
    /// Secrets of this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// Runs an operation on a Secret with the timeout [`CALL_LIMIT`].
    async fn in_time<T>(
        name: &str,
        work: impl Future<Output = Result<T, SecretError>>,
    ) -> Result<T, SecretError> {
        tokio::time::timeout(CALL_LIMIT, work).await.unwrap_or_else(|_| {
            let reason = CallError::TimedOut(CALL_LIMIT).to_string();
            Err(SecretError::Unavailable { name: name.to_owned(), reason, passing: true })
        })
    }

    fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create_namespace(&self) -> Result<(), Error> {
        let metadata = ObjectMeta { name: Some(self.namespace.clone()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let namespaces = Api::<Namespace>::all(self.client.clone());
        match namespaces.create(&PostParams::default(), &namespace).await {
            Err(error) if code(&error) != Some(409) => Err(error),
            _ => Ok(()),
        }
    }

    async fn try_create(&self, name: &str, data: SecretData) -> Result<String, SecretError> {
        let secret = secret(name, None, data);
        let mut created = self.api().create(&PostParams::default(), &secret).await;
        if created.as_ref().is_err_and(|error| code(error) == Some(404)) {
            self.create_namespace().await.map_err(|error| failure(name, &error))?;
            created = self.api().create(&PostParams::default(), &secret).await;
        }
        match created {
            Err(error) if code(&error) == Some(409) => Err(SecretError::Exists { name: name.to_owned() }),
            Err(error) => Err(failure(name, &error)),
            Ok(written) => Ok(written.metadata.resource_version.unwrap_or_default()),
        }
    }

    async fn try_get(&self, name: &str) -> Result<Option<StoredSecret>, SecretError> {
        let found = self.api().get_opt(name).await.map_err(|error| failure(name, &error))?;
        Ok(found.map(|secret| StoredSecret {
            data: secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect(),
            version: secret.metadata.resource_version.unwrap_or_default(),
        }))
    }

    async fn try_update(&self, name: &str, version: &str, data: SecretData) -> Result<String, SecretError> {
        let secret = secret(name, Some(version), data);
        match self.api().replace(name, &PostParams::default(), &secret).await {
            Err(error) if matches!(code(&error), Some(404 | 409)) => {
                Err(SecretError::Conflict { name: name.to_owned() })
            }
            Err(error) => Err(failure(name, &error)),
            Ok(written) => Ok(written.metadata.resource_version.unwrap_or_default()),
        }
    }
}

impl SecretStore for ClusterSecrets {
    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<StoredSecret>, SecretError>> {
        Self::in_time(name, self.try_get(name)).boxed()
    }

    fn create<'a>(&'a self, name: &'a str, data: SecretData) -> BoxFuture<'a, Result<String, SecretError>> {
        Self::in_time(name, self.try_create(name, data)).boxed()
    }

    fn update<'a>(
        &'a self,
        name: &'a str,
        version: &'a str,
        data: SecretData,
    ) -> BoxFuture<'a, Result<String, SecretError>> {
        Self::in_time(name, self.try_update(name, version, data)).boxed()
    }
}

/// Label selector of everything that cloudcore has written.
pub const OWN_LABEL: &str = "app.kubernetes.io/managed-by=tombolo";

fn secret(name: &str, version: Option<&str>, data: SecretData) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: version.map(str::to_owned),
            labels: Some(BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), "tombolo".to_owned())])),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect::<BTreeMap<_, _>>()),
        ..Secret::default()
    }
}

fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

fn failure(name: &str, error: &Error) -> SecretError {
    let passing = is_passing_failure(error);
    SecretError::Unavailable { name: name.to_owned(), reason: error.to_string(), passing }
}

//! The admission plugins that every cluster has: they complete and check an object before it is stored.

pub(super) mod addresses;
pub(super) mod certificates;
mod classes;
mod devices;
pub(super) mod lifecycle;
mod limit_range;
pub(super) mod node_restriction;
mod pod_security;
pub(super) mod pods;
pub(super) mod policies;
mod quota;
pub(super) mod rbac;
mod runtime_class;
pub(super) mod service_account;
pub(super) mod services;
mod taints;
pub(super) mod topology;
pub(super) mod webhooks;

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tombolo_apicore::admission::{Admission, AdmissionRequest, Operation};
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::status::ApiError;

use self::addresses::Addresses;
use self::policies::Enforcement;
use self::webhooks::Webhooks;
use super::authz::{self, Authorization};
use super::controllers::external::ExternalControllers;
use super::objects::Objects;

/// All plugins, in the order in which kube-apiserver runs them.
pub(super) struct Plugins {
    /// The stored objects.
    pub(super) objects: Objects,
    /// Gives Services their addresses.
    pub(super) addresses: Addresses,
    /// Decides what callers may do.
    pub(super) authorization: Authorization,
    /// Admission policies.
    pub(super) policies: Enforcement,
    /// Admission webhooks.
    pub(super) webhooks: Webhooks,
    /// Whether kube-controller-manager is running.
    pub(super) external: Arc<ExternalControllers>,
}

impl Plugins {
    /// Runs the plugins that may change the object. If policies or webhooks change the object, the plugins run again on
    /// the result, as if the client had sent it. Webhooks with a reinvocation policy are then called once more.
    async fn run(&self, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
        self.run_own(request).await?;
        if self.policies.mutate(request).await? {
            self.run_own(request).await?;
        }
        let mutations = self.webhooks.mutate(request).await?;
        if mutations.changed {
            self.run_own(request).await?;
            self.webhooks.mutate_again(request, &mutations).await?;
        }
        self.allocate(request)
    }

    /// Runs policies and webhooks on an action, whose object is not stored. They may change that object.
    ///
    /// # Errors
    /// The first refusal.
    pub(super) async fn judge_action(&self, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
        self.policies.mutate(request).await?;
        let mutations = self.webhooks.mutate(request).await?;
        if mutations.changed {
            self.webhooks.mutate_again(request, &mutations).await?;
        }
        self.policies.validate(request).await?;
        self.webhooks.validate(request).await
    }

    /// Allocates addresses and ports for a Service, after the last plugin that may change it.
    fn allocate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
        if stores_service(request) { services::admit(&self.addresses, request) } else { Ok(()) }
    }

    async fn run_own(&self, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
        lifecycle::admit(&self.objects, request)?;
        limit_range::complete(&self.objects, request);
        node_restriction::admit(&self.objects, request)?;
        if self.external.is_at_work() {
            taints::complete(request);
        }
        classes::complete(&self.objects, request);
        let asked = request.attributes;
        let main = asked.subresource.is_empty();
        match (asked.group.as_str(), asked.resource.as_str(), request.operation) {
            ("", "pods", Operation::Create) if main => {
                service_account::admit(&self.objects, request).await?;
                pods::admit_new(&self.objects, request)?;
                topology::complete(&self.objects, request);
                runtime_class::complete(&self.objects, request)
            }
            ("", "pods", Operation::Update) if main => {
                pods::admit_changed(request);
                Ok(())
            }
            ("certificates.k8s.io", "certificatesigningrequests", _) => {
                certificates::admit(&self.authorization, request)
            }
            ("scheduling.k8s.io", "priorityclasses", Operation::Create | Operation::Update) => {
                pods::admit_class(&self.objects, request)
            }
            (authz::rbac::GROUP, _, _) if main => rbac::admit(&self.authorization, request),
            _ => Ok(()),
        }
    }
}

impl Admission for Plugins {
    fn mutate<'a>(&'a self, request: &'a mut AdmissionRequest<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(self.run(request))
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            limit_range::admit(&self.objects, request)?;
            pod_security::admit(&self.objects, request)?;
            classes::admit_growth(&self.objects, request)?;
            policies::admit_definition(request).await?;
            devices::admit(&self.objects, request).await?;
            self.policies.validate(request).await?;
            self.webhooks.validate(request).await?;
            quota::admit(&self.objects, request).await
        })
    }

    fn abandon(&self, request: &AdmissionRequest<'_>) {
        if stores_service(request) {
            services::abandon(&self.addresses, request);
        }
    }
}

fn stores_service(request: &AdmissionRequest<'_>) -> bool {
    let asked = request.attributes;
    let is_service = asked.group.is_empty() && asked.resource == "services" && asked.subresource.is_empty();
    is_service && matches!(request.operation, Operation::Create | Operation::Update)
}

/// The kind of the object in a request, as admission sees it.
fn carried_kind(kind: &KindInfo, subresource: &str) -> Value {
    let own = kind.subresources.iter().find(|own| &*own.name == subresource);
    let (group, version, name) = match own {
        Some(own) => (&*own.group, &*own.version, &*own.kind),
        None => (&*kind.resource.group, &*kind.resource.version, &*kind.kind),
    };
    json!({"group": group, "version": version, "kind": name})
}

/// A refusal by a plugin, worded as in kube-apiserver.
fn refuse(asked: &Attributes, name: &str, why: impl AsRef<str>) -> ApiError {
    ApiError::forbidden_object(&asked.group, &asked.resource, name, why.as_ref())
}

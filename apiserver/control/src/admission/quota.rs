//! ResourceQuota: refuses an object that would exceed a quota, and charges every other object before it is stored. If a
//! charged object is not stored, the next count of the controller corrects the charge ([`crate::controllers::quota`]).

use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::status::ApiError;

use super::refuse;
use crate::objects::{Edit, Objects, member, text};
use crate::quota::{Amounts, Item, is_ignored, quotas, tracks};

/// Checks the quotas and charges them. Runs last, so that only objects that passed the other checks are charged.
///
/// # Errors
/// 403 when a quota is exceeded, its use is not known yet, or a pod lacks required requests or limits. The error of the
/// store when the charge cannot be written.
pub(super) async fn admit(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let Some(charge) = Charge::of(request) else { return Ok(()) };
    let refused = |why: String| refuse(request.attributes, request.name, why);
    let mut charged = Vec::new();
    // All quotas are checked before any is charged.
    for quota in objects.list(&quotas(), Some(request.namespace)) {
        if charge.to(&quota.value).map_err(refused)?.is_some() {
            charged.push(quota.key);
        }
    }
    if request.dry_run {
        return Ok(());
    }
    for key in charged {
        let mut refusal = None;
        let write = objects.update(&key, |quota| match charge.to(&quota.value) {
            Ok(Some(used)) => {
                member(&mut quota.value, "status").insert("used".into(), used.to_value());
                Edit::Put
            }
            Ok(None) => Edit::Keep,
            Err(why) => {
                refusal = Some(why);
                Edit::Keep
            }
        });
        write.await?;
        if let Some(why) = refusal {
            return Err(refused(why));
        }
    }
    Ok(())
}

/// What a request adds to the use of quotas.
struct Charge<'a> {
    item: Item<'a>,
    usage: Amounts,
    old: Option<(Item<'a>, Amounts)>,
}

impl<'a> Charge<'a> {
    /// Returns `None` for requests that no quota counts.
    fn of(request: &'a AdmissionRequest<'_>) -> Option<Self> {
        let asked = request.attributes;
        let (group, resource) = (asked.group.as_str(), asked.resource.as_str());
        if request.namespace.is_empty() || is_ignored(group, resource) {
            return None;
        }
        let item = Item { group, resource, object: request.object.as_deref()? };
        let main = asked.subresource.is_empty();
        let counted = match (group, resource, request.operation) {
            (_, _, Operation::Create) => main,
            ("", "pods", Operation::Update) if main => request.old.is_some_and(|old| item.has_moved(old)),
            ("", "pods", Operation::Update) => asked.subresource == "resize",
            ("", "services" | "persistentvolumeclaims", Operation::Update) => main,
            _ => false,
        };
        if !counted {
            return None;
        }
        let before = |object| Item { object, ..item };
        let old = request.old.map(before).map(|old| (old, old.usage()));
        Some(Self { item, usage: item.usage(), old })
    }

    /// The new use of a quota; `None` when the request does not change it.
    ///
    /// # Errors
    /// Why the quota forbids the request, worded as in kube-apiserver.
    fn to(&self, quota: &Value) -> Result<Option<Amounts>, String> {
        if !self.item.counts_against(quota) {
            return Ok(None);
        }
        let name = text(quota, "/metadata/name");
        let limits = Amounts::read(quota.pointer("/status/hard"));
        let mut used = Amounts::read(quota.pointer("/status/used"));
        let own = limits.only(|name| tracks(self.item.group, self.item.resource, name));
        if let Some(what) = self.item.unsaid(&own) {
            return Err(format!("failed quota: {name}: {what}"));
        }
        if own.names().any(|name| used.get(name).is_none()) {
            let names = own.names().collect::<Vec<_>>().join(",");
            return Err(format!("status unknown for quota: {name}, resources: {names}"));
        }
        let added = match &self.old {
            Some((old, before)) if old.counts_against(quota) => self.usage.above(before),
            _ => self.usage.clone(),
        };
        let asked = added.nonzero().only(|name| limits.get(name).is_some());
        if asked.is_empty() {
            return Ok(None);
        }
        let before = used.clone();
        used.add(&asked);
        let after = used.only(|name| asked.get(name).is_some());
        let over = after.beyond(&limits);
        if over.is_empty() {
            return Ok(Some(used));
        }
        let of = |amounts: &Amounts| amounts.only(|name| over.contains(&name)).to_string();
        let (asked, before, limits) = (of(&asked), of(&before), of(&limits));
        Err(format!("exceeded quota: {name}, requested: {asked}, used: {before}, limited: {limits}"))
    }
}

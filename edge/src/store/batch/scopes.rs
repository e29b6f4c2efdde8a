//! Sessions and scopes: where each part of the store was left in the cloud's history.

use std::collections::BTreeSet;
use std::sync::Arc;

use redb::ReadableTable;
use tombolo_proto::ids::{CloudRevision, Epoch, ScopeId};
use tombolo_proto::object::Resource;

use super::super::error::{WriteError, storage};
use super::super::row::ObjectRow;
use super::super::schema::{EpochRow, ScopeRow, SubscriptionRow};
use super::super::scope::Selection;
use super::super::view::Scopes;
use super::super::{Welcome, keys};
use super::{Batch, damaged};

impl Batch<'_> {
    /// The cloud follows this epoch in the session that starts now. Unless the session resumes the history of the
    /// store, what is held belongs to no epoch until it was compared, scope by scope.
    pub(in crate::store) fn welcome(&mut self, welcome: &Welcome) -> Result<(), WriteError> {
        let epoch = EpochRow::from(&welcome.epoch);
        if self.state.epoch.as_ref() != Some(&epoch) {
            self.state.era = self.state.era.saturating_add(1);
            self.state.epoch = Some(epoch.clone());
        }
        if welcome.resumed {
            return Ok(());
        }
        self.state.trim_version = welcome.trim_version;
        let holding = self.holding_scopes()?;
        let mut scopes = Scopes::clone(&self.scope_rows);
        scopes.entry(ScopeId::NODE.0).or_default();
        for (scope, mut row) in scopes {
            row.epoch = (!holding.contains(&scope)).then(|| epoch.clone());
            self.put_scope(scope, row)?;
        }
        Ok(())
    }

    /// A scope is complete.
    pub(in crate::store) fn caught_up(
        &mut self,
        scope: ScopeId,
        epoch: &Epoch,
        revision: CloudRevision,
    ) -> Result<(), WriteError> {
        let mut row = self.scope_rows.get(&scope.0).cloned().unwrap_or_default();
        row.synced = true;
        if self.read.insert(scope.0) {
            row.since = self.state.revision;
        }
        row.epoch = Some(epoch.into());
        row.revision = revision.0;
        self.put_scope(scope.0, row)
    }

    /// The number under which a selection is kept.
    pub(in crate::store) fn open_scope(&mut self, selection: &Selection) -> Result<ScopeId, WriteError> {
        let subscription = SubscriptionRow::from(selection);
        let rows = &self.scope_rows;
        let kept = rows.iter().find(|(_, row)| row.subscription.as_ref() == Some(&subscription));
        if let Some((number, _)) = kept {
            return Ok(ScopeId(*number));
        }
        let number = rows.keys().max().copied().unwrap_or_default().saturating_add(1);
        let row = ScopeRow { subscription: Some(subscription), ..ScopeRow::default() };
        self.put_scope(number, row)?;
        Ok(ScopeId(number))
    }

    /// Forgets a subscription.
    pub(in crate::store) fn drop_scope(&mut self, scope: ScopeId) -> Result<(), WriteError> {
        self.clear_scope(scope)?;
        self.scopes.open()?.remove(scope.0).map_err(storage)?;
        Arc::make_mut(&mut self.scope_rows).remove(&scope.0);
        Ok(())
    }

    /// Forgets what only a subscription holds, as if it had never been complete. Its watches end, so nothing is told to
    /// them.
    pub(in crate::store) fn clear_scope(&mut self, scope: ScopeId) -> Result<(), WriteError> {
        let row = self.scope_rows.get(&scope.0);
        let Some(subscription) = row.and_then(|row| row.subscription.clone()) else { return Ok(()) };
        self.read.remove(&scope.0);
        let Selection { resource, namespace, .. } = subscription.selection();
        self.put_scope(scope.0, ScopeRow { subscription: Some(subscription), ..ScopeRow::default() })?;
        let namespace = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
        for place in self.places(&resource, namespace)? {
            let key = keys::decode(&place).ok_or_else(|| damaged("key"))?;
            self.delete(scope.0, &place, &key)?;
        }
        self.published.closed.push(scope);
        Ok(())
    }

    pub(in crate::store) fn places(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<Vec<Vec<u8>>, WriteError> {
        let Some((start, end)) = keys::range(resource, namespace) else { return Ok(Vec::new()) };
        let rows = self.objects.range(start.as_slice()..end.as_slice()).map_err(storage)?;
        rows.map(|entry| Ok(entry.map_err(storage)?.0.value().to_vec())).collect()
    }

    fn put_scope(&mut self, scope: u32, row: ScopeRow) -> Result<(), WriteError> {
        let text = serde_json::to_vec(&row).map_err(|error| WriteError::Storage(error.to_string()))?;
        self.scopes.open()?.insert(scope, text.as_slice()).map_err(storage)?;
        Arc::make_mut(&mut self.scope_rows).insert(scope, row);
        Ok(())
    }

    /// The scopes in which something is held.
    fn holding_scopes(&self) -> Result<BTreeSet<u32>, WriteError> {
        let mut holding = BTreeSet::new();
        for entry in self.objects.iter().map_err(storage)? {
            holding.extend(ObjectRow::head(entry.map_err(storage)?.1.value())?.0.scopes);
        }
        Ok(holding)
    }
}

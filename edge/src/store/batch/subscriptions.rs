//! Sessions and subscriptions: the position of each part of the store in the cloud's history.

use std::collections::BTreeSet;
use std::sync::Arc;

use redb::ReadableTable;
use tombolo_proto::ids::{CloudRevision, Epoch, SubscriptionId};
use tombolo_proto::object::Resource;

use super::super::error::{WriteError, storage};
use super::super::row::ObjectRow;
use super::super::schema::{EpochRow, SelectionRow, SubscriptionRow};
use super::super::selection::Selection;
use super::super::view::SubscriptionRows;
use super::super::{Welcome, keys};
use super::{Batch, damaged};

impl Batch<'_> {
    /// Records the cloud's epoch in the session that starts now. Unless the session resumes the history of the store,
    /// the stored objects belong to no epoch until they were compared, subscription by subscription.
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
        let holding = self.holding_subscriptions()?;
        let mut subscriptions = SubscriptionRows::clone(&self.subscription_rows);
        subscriptions.entry(SubscriptionId::NODE.0).or_default();
        for (subscription, mut row) in subscriptions {
            row.epoch = (!holding.contains(&subscription)).then(|| epoch.clone());
            self.put_subscription(subscription, row)?;
        }
        Ok(())
    }

    /// Records that a subscription is complete.
    pub(in crate::store) fn caught_up(
        &mut self,
        subscription: SubscriptionId,
        epoch: &Epoch,
        revision: CloudRevision,
    ) -> Result<(), WriteError> {
        let mut row = self.subscription_rows.get(&subscription.0).cloned().unwrap_or_default();
        row.synced = true;
        if self.read.insert(subscription.0) {
            row.since = self.state.revision;
        }
        row.epoch = Some(epoch.into());
        row.revision = revision.0;
        self.put_subscription(subscription.0, row)
    }

    /// The number under which a selection is kept.
    pub(in crate::store) fn open_subscription(
        &mut self,
        selection: &Selection,
    ) -> Result<SubscriptionId, WriteError> {
        let selected = SelectionRow::from(selection);
        let rows = &self.subscription_rows;
        let kept = rows.iter().find(|(_, row)| row.selection.as_ref() == Some(&selected));
        if let Some((number, _)) = kept {
            return Ok(SubscriptionId(*number));
        }
        let number = rows.keys().max().copied().unwrap_or_default().saturating_add(1);
        let row = SubscriptionRow { selection: Some(selected), ..SubscriptionRow::default() };
        self.put_subscription(number, row)?;
        Ok(SubscriptionId(number))
    }

    /// Forgets a subscription.
    pub(in crate::store) fn drop_subscription(
        &mut self,
        subscription: SubscriptionId,
    ) -> Result<(), WriteError> {
        self.clear_subscription(subscription)?;
        self.subscriptions.open()?.remove(subscription.0).map_err(storage)?;
        Arc::make_mut(&mut self.subscription_rows).remove(&subscription.0);
        Ok(())
    }

    /// Deletes the objects that only this subscription has, as if it had never been complete. Its watches end, so they
    /// are not notified.
    pub(in crate::store) fn clear_subscription(
        &mut self,
        subscription: SubscriptionId,
    ) -> Result<(), WriteError> {
        let row = self.subscription_rows.get(&subscription.0);
        let Some(selected) = row.and_then(|row| row.selection.clone()) else { return Ok(()) };
        self.read.remove(&subscription.0);
        let Selection { resource, namespace, .. } = selected.selection();
        self.put_subscription(
            subscription.0,
            SubscriptionRow { selection: Some(selected), ..SubscriptionRow::default() },
        )?;
        let namespace = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
        for row_key in self.row_keys(&resource, namespace)? {
            let key = keys::decode(&row_key).ok_or_else(|| damaged("key"))?;
            self.delete(subscription.0, &row_key, &key)?;
        }
        self.published.closed.push(subscription);
        Ok(())
    }

    pub(in crate::store) fn row_keys(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<Vec<Vec<u8>>, WriteError> {
        let Some((start, end)) = keys::range(resource, namespace) else { return Ok(Vec::new()) };
        let rows = self.objects.range(start.as_slice()..end.as_slice()).map_err(storage)?;
        rows.map(|entry| Ok(entry.map_err(storage)?.0.value().to_vec())).collect()
    }

    fn put_subscription(&mut self, subscription: u32, row: SubscriptionRow) -> Result<(), WriteError> {
        let text = serde_json::to_vec(&row).map_err(|error| WriteError::Storage(error.to_string()))?;
        self.subscriptions.open()?.insert(subscription, text.as_slice()).map_err(storage)?;
        Arc::make_mut(&mut self.subscription_rows).insert(subscription, row);
        Ok(())
    }

    /// The subscriptions that have objects.
    fn holding_subscriptions(&self) -> Result<BTreeSet<u32>, WriteError> {
        let mut holding = BTreeSet::new();
        for entry in self.objects.iter().map_err(storage)? {
            holding.extend(ObjectRow::head(entry.map_err(storage)?.1.value())?.0.subscriptions);
        }
        Ok(holding)
    }
}

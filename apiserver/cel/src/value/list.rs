//! Lists of JSON values as expressions see them. If the schema declares how elements are identified, the order is
//! irrelevant, and a sum contains every element once (like kube-apiserver's lists).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, OnceLock};

use cel::ExecutionError;
use cel::common::traits::{Adder, Container, Indexer, Iterable, Iterator as Items, Sizer, Zeroer};
use cel::common::types::{CelInt, CelList, CelString, CelUInt, Kind, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use serde_json::Value;

use super::{ANY, Boxed, elements, equal, equal_in_order, json, length, value};
use crate::escape::escape;
use crate::types::{ListKind, Type};

/// A list. Clones share converted values.
pub(crate) struct List<'v>(Arc<ListParts<'v>>);

struct ListParts<'v> {
    json: &'v [Value],
    ty: &'v Type,
    items: OnceLock<Vec<Boxed<'v>>>,
}

impl<'v> List<'v> {
    pub(super) fn new(json: &'v [Value], ty: &'v Type) -> Self {
        Self(Arc::new(ListParts { json, ty, items: OnceLock::new() }))
    }

    fn items(&self) -> &[Boxed<'v>] {
        let of = if let Type::List(element, ..) = self.0.ty { element.as_ref() } else { &ANY };
        self.0.items.get_or_init(|| self.0.json.iter().map(|json| value(json, of)).collect())
    }

    fn kind(&self) -> &'v ListKind {
        if let Type::List(_, _, kind) = self.0.ty { kind } else { &ListKind::Atomic }
    }

    /// The identity of an element in a set or map list.
    fn identity(&self, element: &dyn Val) -> String {
        let text = |value: &dyn Val| json(value).map(|json| json.to_string()).unwrap_or_default();
        let ListKind::Map(keys) = self.kind() else { return text(element) };
        let member = |key: &String| {
            // kube-apiserver looks up the escaped name. If the name had to be escaped, the JSON has no such member, and
            // all elements have the same identity.
            let name = escape(key).filter(|name| name == key)?;
            let found = element.as_indexer()?.get(&CelString::from(name.as_str())).ok()?;
            Some(text(found.as_ref()))
        };
        keys.iter().map(|key| member(key).unwrap_or_default()).collect::<Vec<_>>().join(",")
    }

    /// The positions of the elements by identity.
    fn indexes(&self) -> HashMap<String, usize> {
        self.items().iter().enumerate().map(|(index, item)| (self.identity(item.as_ref()), index)).collect()
    }

    /// Whether another list has the same elements in any order.
    fn has_same_elements(&self, other: &dyn Val) -> bool {
        let same_size = other.as_sizer().is_some_and(|other| *other.size().inner() == *self.size().inner());
        let (Ok(mut others), true) = (elements(other), same_size) else { return false };
        let indexes = self.indexes();
        while let Some(item) = others.next() {
            match indexes.get(&self.identity(item)) {
                Some(_) if *self.kind() == ListKind::Set => {}
                Some(index) if equal(self.items()[*index].as_ref(), item) => {}
                _ => return false,
            }
        }
        true
    }
}

impl fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.items()).finish()
    }
}

impl<'v> Val for List<'v> {
    fn get_type(&self) -> &cel::common::types::Type {
        &LIST_TYPE
    }

    fn cel_type() -> &'static cel::common::types::Type {
        &LIST_TYPE
    }

    fn as_adder<'b, 'w>(&'b self) -> Option<&'b (dyn Adder + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        if other.get_type().kind() != Kind::List {
            return false;
        }
        match self.kind() {
            ListKind::Atomic => equal_in_order(self, other),
            ListKind::Set | ListKind::Map(_) => self.has_same_elements(other),
        }
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(List(Arc::clone(&self.0)))
    }
}

impl<'v> Adder for List<'v> {
    fn add<'b, 'w>(&'b self, other: &(dyn Val + 'w)) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let mut all: Vec<Box<dyn Val + 'w>> = self.items().iter().map(|item| item.clone_as_boxed()).collect();
        let mut others = elements(other)?;
        if *self.kind() == ListKind::Atomic {
            while let Some(item) = others.next() {
                all.push(item.clone_as_boxed());
            }
            return Ok(CowVal::owned(CelList::from(all)));
        }
        let mut indexes = self.indexes();
        while let Some(item) = others.next() {
            match indexes.entry(self.identity(item)) {
                Entry::Occupied(index) => all[*index.get()] = item.clone_as_boxed(),
                Entry::Vacant(free) => {
                    free.insert(all.len());
                    all.push(item.clone_as_boxed());
                }
            }
        }
        let sum: List<'w> =
            List(Arc::new(ListParts { json: &[], ty: self.0.ty, items: OnceLock::from(all) }));
        Ok(CowVal::Owned(Box::new(sum)))
    }
}

impl Container for List<'_> {
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.items().iter().any(|item| equal(item.as_ref(), value)))
    }
}

impl<'v> Indexer for List<'v> {
    fn get<'b, 'w>(&'b self, index: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let at = match (index.downcast_ref::<CelInt>(), index.downcast_ref::<CelUInt>()) {
            (Some(at), _) => usize::try_from(*at.inner()).ok(),
            (_, Some(at)) => usize::try_from(*at.inner()).ok(),
            _ => None,
        };
        match at.and_then(|at| self.items().get(at)) {
            Some(item) => Ok(CowVal::Borrowed(item.as_ref())),
            None => Err(ExecutionError::IndexOutOfBounds(index.try_into().unwrap_or(cel::Value::Null))),
        }
    }

    fn steal<'w>(self: Box<Self>, index: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        Ok(self.get(index)?.clone_as_boxed())
    }
}

impl<'v> Iterable for List<'v> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn Items<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        Box::new(Elements(self.items().iter()))
    }
}

impl Sizer for List<'_> {
    fn size(&self) -> CelInt {
        length(self.items().len())
    }
}

impl Zeroer for List<'_> {
    fn is_zero_value(&self) -> bool {
        self.items().is_empty()
    }
}

struct Elements<'b, 'v>(std::slice::Iter<'b, Boxed<'v>>);

impl<'b, 'v: 'w, 'w> Items<'b, 'w> for Elements<'b, 'v> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'w)> {
        self.0.next().map(|item| item.as_ref() as &'b (dyn Val + 'w))
    }
}

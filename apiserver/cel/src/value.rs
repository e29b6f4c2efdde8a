//! JSON values as expressions see them: by their declared type, converted only when an expression reads them.

mod list;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Iterator as Items, Sizer, Zeroer};
use cel::common::types::{
    CelBool, CelBytes, CelDouble, CelInt, CelList, CelNull, CelString, CelUInt, Kind, MAP_TYPE,
};
use cel::common::value::{CowVal, Val};
use serde_json::Value;

use crate::time;
use crate::types::Type;
use list::List;

type Boxed<'v> = Box<dyn Val + 'v>;

/// A value with the type that its schema declares.
pub(crate) fn value<'v>(json: &'v Value, ty: &'v Type) -> Boxed<'v> {
    match (json, ty) {
        (Value::Null, _) => Box::new(CelNull),
        (Value::Bool(value), _) => Box::new(CelBool::from(*value)),
        (Value::Number(number), Type::Double) => {
            Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN)))
        }
        (Value::Number(number), _) => integer(number, ty),
        (Value::String(text), ty) => string(text, ty),
        (Value::Array(items), ty) => Box::new(List::new(items, ty)),
        (Value::Object(members), ty) => Box::new(Map::new(members, ty)),
    }
}

fn integer<'v>(number: &serde_json::Number, ty: &Type) -> Boxed<'v> {
    if let Some(whole) = number.as_i64() {
        return Box::new(CelInt::from(whole));
    }
    let float = number.as_f64().unwrap_or(f64::NAN);
    match ty {
        // Schemas accept 1.0 as an integer.
        Type::Int if float.fract() == 0.0 && float.abs() < 9.0e18 => Box::new(CelInt::from(float as i64)),
        _ => Box::new(CelDouble::from(float)),
    }
}

/// A text with a format. A text that does not have its format stays a string: the schema has already refused it, or
/// does not require the format.
fn string<'v>(text: &'v str, ty: &Type) -> Boxed<'v> {
    let read: Option<Boxed<'v>> = match ty {
        Type::Bytes(_) => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text).ok();
            decoded.map(|bytes| Box::new(CelBytes::from(bytes)) as Boxed<'v>)
        }
        Type::Timestamp => time::Timestamp::parse(text).map(|time| Box::new(time) as Boxed<'v>),
        Type::Duration => time::Duration::parse(text).map(|span| Box::new(span) as Boxed<'v>),
        _ => None,
    };
    read.unwrap_or_else(|| Box::new(CelString::from(text)))
}

/// The type of values that the schema does not describe.
static ANY: Type = Type::DYN;

/// An object or a map. Clones share converted values.
pub(crate) struct Map<'v>(Arc<MapParts<'v>>);

struct MapParts<'v> {
    members: &'v serde_json::Map<String, Value>,
    ty: &'v Type,
    entries: OnceLock<Entries<'v>>,
}

struct Entries<'v> {
    keys: Vec<CelString<'v>>,
    values: BTreeMap<&'v str, Boxed<'v>>,
}

impl<'v> Map<'v> {
    fn new(members: &'v serde_json::Map<String, Value>, ty: &'v Type) -> Self {
        Self(Arc::new(MapParts { members, ty, entries: OnceLock::new() }))
    }

    fn entries(&self) -> &Entries<'v> {
        self.0.entries.get_or_init(|| self.0.read())
    }
}

impl<'v> MapParts<'v> {
    fn read(&self) -> Entries<'v> {
        let mut values = BTreeMap::new();
        match self.ty {
            Type::Object(object) => {
                for (name, field) in &object.fields {
                    if let Some(json) = self.members.get(&field.json) {
                        values.insert(name.as_str(), value(json, &field.ty));
                    }
                }
            }
            ty => {
                let of = if let Type::Map(_, value, _) = ty { value.as_ref() } else { &ANY };
                values.extend(self.members.iter().map(|(name, json)| (name.as_str(), value(json, of))));
            }
        }
        Entries { keys: values.keys().map(|name| CelString::from(*name)).collect(), values }
    }
}

impl fmt::Debug for Map<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.members).finish()
    }
}

impl<'v> Val for Map<'v> {
    fn get_type(&self) -> &cel::common::types::Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static cel::common::types::Type {
        &MAP_TYPE
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
        other.get_type().kind() == Kind::Map && equal_maps(self, other)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(Map(Arc::clone(&self.0)))
    }
}

fn no_such_key(key: &dyn Val) -> ExecutionError {
    ExecutionError::no_such_key(key.downcast_ref::<CelString<'_>>().map_or("", |name| name.inner()))
}

impl Container for Map<'_> {
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        let key = value.downcast_ref::<CelString<'_>>();
        Ok(key.is_some_and(|key| self.entries().values.contains_key(key.inner())))
    }
}

impl<'v> Indexer for Map<'v> {
    fn get<'b, 'w>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let name = key.downcast_ref::<CelString<'_>>().ok_or_else(|| no_such_key(key))?;
        match self.entries().values.get(name.inner()) {
            Some(value) => Ok(CowVal::Borrowed(value.as_ref())),
            None => Err(no_such_key(key)),
        }
    }

    fn steal<'w>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        Ok(self.get(key)?.clone_as_boxed())
    }
}

impl<'v> Iterable for Map<'v> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn Items<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        Box::new(Keys(self.entries().keys.iter()))
    }
}

impl Sizer for Map<'_> {
    fn size(&self) -> CelInt {
        length(self.entries().keys.len())
    }
}

impl Zeroer for Map<'_> {
    fn is_zero_value(&self) -> bool {
        self.entries().keys.is_empty()
    }
}

struct Keys<'b, 'v>(std::slice::Iter<'b, CelString<'v>>);

impl<'b, 'v: 'w, 'w> Items<'b, 'w> for Keys<'b, 'v> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'w)> {
        self.0.next().map(|key| key as &'b (dyn Val + 'w))
    }
}

fn length(count: usize) -> CelInt {
    CelInt::from(i64::try_from(count).unwrap_or(i64::MAX))
}

/// The elements of a list.
pub(crate) fn elements<'b, 'v>(
    list: &'b (dyn Val + 'v),
) -> Result<Box<dyn Items<'b, 'v> + 'b>, ExecutionError> {
    let found = list.as_iterable().ok_or_else(|| ExecutionError::UnexpectedType {
        got: list.get_type().name().to_owned(),
        want: "list".to_owned(),
    })?;
    Ok(found.iter())
}

/// Whether two values are equal. Lists and maps from JSON and from the expression are compared alike.
pub(crate) fn equal(a: &dyn Val, b: &dyn Val) -> bool {
    let kinds = (a.get_type().kind(), b.get_type().kind());
    match kinds {
        // Lists of the evaluator cannot compare with JSON lists; JSON lists know how to identify their elements.
        (Kind::List, Kind::List) => {
            if a.downcast_ref::<CelList<'_>>().is_some() {
                equal_in_order(a, b)
            } else {
                a.equals(b)
            }
        }
        (Kind::Map, Kind::Map) => equal_maps(a, b),
        _ => a.equals(b),
    }
}

fn equal_in_order(a: &dyn Val, b: &dyn Val) -> bool {
    let (Ok(mut left), Ok(mut right)) = (elements(a), elements(b)) else { return false };
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(x), Some(y)) if equal(x, y) => {}
            _ => return false,
        }
    }
}

fn equal_maps(a: &dyn Val, b: &dyn Val) -> bool {
    let size = |map: &dyn Val| map.as_sizer().map(|sizer| *sizer.size().inner());
    let (Some(left), Some(right)) = (a.as_indexer(), b.as_indexer()) else { return false };
    if size(a) != size(b) {
        return false;
    }
    let Ok(mut keys) = elements(a) else { return false };
    while let Some(key) = keys.next() {
        match (left.get(key), right.get(key)) {
            (Ok(x), Ok(y)) if equal(x.as_ref(), y.as_ref()) => {}
            _ => return false,
        }
    }
    true
}

/// A value as JSON.
///
/// # Errors
/// Names the type, if JSON cannot represent it.
pub(crate) fn json(value: &dyn Val) -> Result<Value, String> {
    let wrong = || format!("a value of type {} has no form in JSON", value.get_type().name());
    match value.get_type().kind() {
        Kind::NullType => Ok(Value::Null),
        Kind::Boolean => value.downcast_ref::<CelBool>().map(|v| Value::Bool(*v.inner())).ok_or_else(wrong),
        Kind::Int => value.downcast_ref::<CelInt>().map(|v| Value::from(*v.inner())).ok_or_else(wrong),
        Kind::UInt => value.downcast_ref::<CelUInt>().map(|v| Value::from(*v.inner())).ok_or_else(wrong),
        Kind::Double => value.downcast_ref::<CelDouble>().map(|v| Value::from(*v.inner())).ok_or_else(wrong),
        Kind::String => {
            value.downcast_ref::<CelString<'_>>().map(|v| Value::from(v.inner())).ok_or_else(wrong)
        }
        Kind::Bytes => {
            let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
            value.downcast_ref::<CelBytes<'_>>().map(|v| Value::from(encode(v.inner()))).ok_or_else(wrong)
        }
        Kind::List => {
            let (mut items, mut list) = (elements(value).map_err(|e| e.to_string())?, Vec::new());
            while let Some(item) = items.next() {
                list.push(json(item)?);
            }
            Ok(Value::Array(list))
        }
        Kind::Map => {
            let (mut keys, mut map) = (elements(value).map_err(|e| e.to_string())?, serde_json::Map::new());
            let members = value.as_indexer().ok_or_else(wrong)?;
            while let Some(key) = keys.next() {
                let name = key.downcast_ref::<CelString<'_>>().ok_or("a key of a JSON object is a string")?;
                let member = members.get(key).map_err(|e| e.to_string())?;
                map.insert(name.inner().to_owned(), json(member.as_ref())?);
            }
            Ok(Value::Object(map))
        }
        _ => time::text(value).map(Value::from).ok_or_else(wrong),
    }
}

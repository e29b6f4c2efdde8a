//! The functions that expressions may call, with their types (from `signatures.txt`).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::types::Type;

const TABLE: &str = include_str!("signatures.txt");

/// The comparison operators, which exist for every pair of ordered types.
const COMPARISONS: [&str; 4] = ["_<_", "_<=_", "_>_", "_>=_"];
const ORDERED: [Type; 6] = [
    Type::Bool,
    Type::STRING,
    Type::Bytes(crate::types::UNBOUNDED),
    Type::Timestamp,
    Type::Duration,
    Type::Int,
];
const NUMBERS: [Type; 3] = [Type::Int, Type::Uint, Type::Double];

/// One overload of a function.
#[derive(Debug, Clone)]
pub(crate) struct Signature {
    pub(crate) parameters: Vec<Type>,
    pub(crate) result: Type,
}

/// All overloads of all functions.
#[derive(Debug)]
pub(crate) struct Signatures {
    global: HashMap<String, Vec<Signature>>,
    member: HashMap<String, Vec<Signature>>,
}

static SIGNATURES: LazyLock<Signatures> = LazyLock::new(Signatures::read);

impl Signatures {
    /// The table, parsed once per process.
    pub(crate) fn get() -> &'static Self {
        &SIGNATURES
    }

    fn read() -> Self {
        let mut signatures = Self { global: HashMap::new(), member: HashMap::new() };
        for line in TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            signatures
                .add(line)
                .unwrap_or_else(|| panic!("signatures.txt, which is part of this crate: {line}"));
        }
        for name in COMPARISONS {
            let ways = ORDERED.iter().take(5).map(|ty| (ty.clone(), ty.clone()));
            let mixed = NUMBERS.iter().flat_map(|a| NUMBERS.iter().map(move |b| (a.clone(), b.clone())));
            let ways =
                ways.chain(mixed).map(|(a, b)| Signature { parameters: vec![a, b], result: Type::Bool });
            signatures.global.insert(name.to_owned(), ways.collect());
        }
        signatures
    }

    fn add(&mut self, line: &'static str) -> Option<()> {
        let (call, result) = line.rsplit_once(") ")?;
        let (name, parameters) = call.rsplit_once('(')?;
        let parameters =
            split(parameters).into_iter().filter(|text| !text.is_empty()).map(read).collect::<Option<_>>()?;
        let signature = Signature { parameters, result: read(result)? };
        let (table, name) = match name.strip_prefix('.') {
            Some(name) => (&mut self.member, name),
            None => (&mut self.global, name),
        };
        table.entry(name.to_owned()).or_default().push(signature);
        Some(())
    }

    /// Overloads of `name(..)`.
    pub(crate) fn global(&self, name: &str) -> Option<&[Signature]> {
        self.global.get(name).map(Vec::as_slice)
    }

    /// Overloads of `target.name(..)`; the target is the first parameter.
    pub(crate) fn member(&self, name: &str) -> Option<&[Signature]> {
        self.member.get(name).map(Vec::as_slice)
    }
}

/// Splits at the commas outside angle brackets.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn read(text: &'static str) -> Option<Type> {
    if let Some((outer, inner)) = text.strip_suffix('>').and_then(|text| text.split_once('<')) {
        let inner: Vec<Type> = split(inner).into_iter().map(read).collect::<Option<_>>()?;
        return match (outer, inner.as_slice()) {
            ("list", [element]) => Some(Type::list(element.clone())),
            ("optional", [of]) => Some(Type::Optional(Arc::new(of.clone()))),
            ("map", [key, value]) => {
                Some(Type::Map(Arc::new(key.clone()), Arc::new(value.clone()), crate::types::UNBOUNDED))
            }
            _ => None,
        };
    }
    Some(match text {
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        "dyn" => Type::DYN,
        "unknown" => Type::Unknown,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::STRING,
        "bytes" => Type::Bytes(crate::types::UNBOUNDED),
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Meta,
        name if name.contains('.') => Type::Opaque(name),
        _ => return None,
    })
}

/// Types bound to the type parameters of a signature in one call.
#[derive(Debug, Default)]
pub(crate) struct Bindings([Option<Type>; 2]);

impl Bindings {
    /// Whether a parameter accepts a type. Binds type parameters that are still free.
    pub(crate) fn accept(&mut self, parameter: &Type, given: &Type) -> bool {
        match (parameter, given) {
            (Type::Param(n), given) => self.bind(usize::from(*n), given),
            (Type::Dyn(_), _) | (_, Type::Dyn(_) | Type::Unknown) => true,
            (Type::List(a, ..), Type::List(b, ..)) | (Type::Optional(a), Type::Optional(b)) => {
                self.accept(a, b)
            }
            (Type::Map(ak, av, _), Type::Map(bk, bv, _)) => self.accept(ak, bk) && self.accept(av, bv),
            (a, b) => a.join(b).is_some() && !matches!(b, Type::Null),
        }
    }

    fn bind(&mut self, n: usize, given: &Type) -> bool {
        let joined = match &self.0[n] {
            None => Some(given.clone()),
            Some(bound) => bound.join(given),
        };
        let fits = joined.is_some();
        self.0[n] = joined.or_else(|| self.0[n].take());
        fits
    }

    /// A result type with bound type parameters filled in.
    pub(crate) fn fill(&self, ty: &Type) -> Type {
        match ty {
            Type::Param(n) => self.0[usize::from(*n)].clone().unwrap_or(Type::Unknown),
            Type::List(element, size, kind) => Type::List(Arc::new(self.fill(element)), *size, kind.clone()),
            Type::Map(key, value, size) => {
                Type::Map(Arc::new(self.fill(key)), Arc::new(self.fill(value)), *size)
            }
            Type::Optional(of) => Type::Optional(Arc::new(self.fill(of))),
            other => other.clone(),
        }
    }
}

//! Reads Go struct declarations: which fields are pointers, which fields are omitted when zero, and their protobuf
//! numbers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One field of a Go struct.
#[derive(Clone, Debug)]
pub(super) struct GoField {
    /// Go type as written, for example `*int32` or `[]Container`.
    pub(super) ty: String,
    /// The tag says `omitempty`.
    pub(super) omit_empty: bool,
    /// The tag says `omitzero`.
    pub(super) omit_zero: bool,
    /// Protobuf field numbers from the outer struct to the field. There are several where JSON inlines a struct that is
    /// a message of its own on the wire, and none where the field is not on the wire.
    pub(super) wire: Vec<u32>,
}

/// One struct: its fields by JSON name, and the structs it embeds.
#[derive(Default)]
struct GoStruct {
    fields: HashMap<String, GoField>,
    inlined: Vec<Inlined>,
}

/// A struct whose fields JSON writes in the outer one.
struct Inlined {
    ty: String,
    number: Option<u32>,
}

/// All structs of the published API packages, by `package.version.Type` as OpenAPI shortens it.
pub(super) struct GoSources {
    structs: HashMap<String, GoStruct>,
}

impl GoSources {
    /// Reads the packages below a Go module cache's `k8s.io` folder.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut structs = HashMap::new();
        let api = module(root, "api")?;
        for group in folders(&api)? {
            for version in folders(&group)? {
                let short = format!("{}.{}", name_of(&group), name_of(&version));
                read_package(&version, &short, &mut structs)?;
            }
        }
        let meta = module(root, "apimachinery")?.join("pkg/apis/meta/v1");
        read_package(&meta, "meta.v1", &mut structs)?;
        let extensions = module(root, "apiextensions-apiserver")?.join("pkg/apis/apiextensions/v1");
        read_package(&extensions, "apiextensions.v1", &mut structs)?;
        let registration = module(root, "kube-aggregator")?.join("pkg/apis/apiregistration/v1");
        read_package(&registration, "apiregistration.v1", &mut structs)?;
        Ok(Self { structs })
    }

    /// The field with a JSON name, looked up through embedded structs.
    pub(super) fn field(&self, type_name: &str, json_name: &str) -> Option<GoField> {
        let declared = self.structs.get(type_name)?;
        if let Some(field) = declared.fields.get(json_name) {
            return Some(field.clone());
        }
        let package = type_name.rsplit_once('.')?.0;
        declared.inlined.iter().find_map(|inlined| {
            let target = match inlined.ty.rsplit_once('.') {
                None => format!("{package}.{}", inlined.ty),
                Some(("metav1", name)) => format!("meta.v1.{name}"),
                Some(("v1", name)) => format!("core.v1.{name}"),
                Some(_) => return None,
            };
            let mut field = self.field(&target, json_name)?;
            match inlined.number {
                Some(number) => field.wire.insert(0, number),
                // Not on the wire: the envelope carries an object's version and kind.
                None => field.wire.clear(),
            }
            Some(field)
        })
    }
}

/// The newest version of a `k8s.io` module in a Go module cache.
pub(super) fn module(root: &Path, name: &str) -> Result<PathBuf> {
    let prefix = format!("{name}@");
    let mut found: Vec<PathBuf> =
        folders(root)?.into_iter().filter(|path| name_of(path).starts_with(&prefix)).collect();
    found.sort();
    found.pop().with_context(|| format!("no k8s.io/{name} below {}: run `go mod download`", root.display()))
}

fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(entries.filter_map(|entry| entry.ok().map(|e| e.path())).filter(|path| path.is_dir()).collect())
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read_package(path: &Path, short: &str, structs: &mut HashMap<String, GoStruct>) -> Result<()> {
    let entries = std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    for file in entries.filter_map(|entry| entry.ok().map(|e| e.path())) {
        let name = name_of(&file);
        if name.ends_with(".go") && !name.ends_with("_test.go") && !name.contains("generated") {
            read_file(&std::fs::read_to_string(&file)?, short, structs);
        }
    }
    Ok(())
}

fn read_file(text: &str, short: &str, structs: &mut HashMap<String, GoStruct>) {
    let mut current: Option<(String, GoStruct)> = None;
    for line in text.lines() {
        if let Some((name, mut open)) = current.take() {
            if line == "}" {
                structs.insert(name, open);
            } else {
                read_line(line, &mut open);
                current = Some((name, open));
            }
        } else if let Some(name) = line.strip_prefix("type ").and_then(|l| l.strip_suffix(" struct {")) {
            current = Some((format!("{short}.{name}"), GoStruct::default()));
        }
    }
}

fn read_line(line: &str, open: &mut GoStruct) {
    let line = line.trim();
    if line.starts_with("//") {
        return;
    }
    let Some((before, tag)) = line.split_once("`") else { return };
    let Some(json) = tag.split("json:\"").nth(1).and_then(|rest| rest.split('"').next()) else { return };
    let mut words = before.split_whitespace();
    let (Some(first), second) = (words.next(), words.next()) else { return };
    let mut parts = json.split(',');
    let json_name = parts.next().unwrap_or_default();
    let options: Vec<&str> = parts.collect();
    let number = protobuf_number(tag);
    if options.contains(&"inline") || second.is_none() {
        open.inlined.push(Inlined { ty: second.unwrap_or(first).to_owned(), number });
        if json_name.is_empty() {
            return;
        }
    }
    let field = GoField {
        ty: second.unwrap_or(first).to_owned(),
        omit_empty: options.contains(&"omitempty"),
        omit_zero: options.contains(&"omitzero"),
        wire: number.into_iter().collect(),
    };
    open.fields.insert(json_name.to_owned(), field);
}

/// The field number in a tag such as `protobuf:"bytes,1,opt,name=metadata"`.
fn protobuf_number(tag: &str) -> Option<u32> {
    tag.split_once("protobuf:\"")?.1.split(',').nth(1)?.parse().ok()
}

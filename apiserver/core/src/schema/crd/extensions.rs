//! The rules about combinations of `x-kubernetes-` keywords, with the messages of kube-apiserver.

use serde_json::{Map, Value};

use crate::field_error::FieldError;

/// Checks the keywords of one schema. `root` is the schema of the whole object.
pub(super) fn check(schema: &Map<String, Value>, path: &str, root: bool, errors: &mut Vec<FieldError>) {
    let mut checker = Checker { schema, path, errors };
    checker.preserve();
    checker.embedded();
    checker.int_or_string();
    checker.entries(root);
    checker.map_type();
    checker.list_type();
    checker.metadata(root);
}

struct Checker<'a, 'e> {
    schema: &'a Map<String, Value>,
    path: &'a str,
    errors: &'e mut Vec<FieldError>,
}

impl Checker<'_, '_> {
    fn get(&self, key: &str) -> &Value {
        self.schema.get(key).unwrap_or(&Value::Null)
    }

    fn ty(&self) -> &str {
        self.get("type").as_str().unwrap_or_default()
    }

    fn is(&self, extension: &str) -> bool {
        self.get(&format!("x-kubernetes-{extension}")) == true
    }

    fn invalid(&mut self, below: &str, value: impl Into<Value>, text: &str) {
        self.errors.push(FieldError::invalid(format!("{}.{below}", self.path), value, text));
    }

    fn required(&mut self, below: &str, text: &str) {
        self.errors.push(FieldError::required(format!("{}.{below}", self.path), text));
    }

    fn preserve(&mut self) {
        let key = "x-kubernetes-preserve-unknown-fields";
        if self.get(key) == false {
            self.invalid(key, false, "must be true or undefined");
        }
    }

    fn int_or_string(&mut self) {
        for other in ["preserve-unknown-fields", "embedded-resource"] {
            if self.is("int-or-string") && self.is(other) {
                let text = "must be false if x-kubernetes-int-or-string is true";
                self.invalid(&format!("x-kubernetes-{other}"), true, text);
            }
        }
    }

    /// Requires a type of a schema that has an extension.
    fn demand_type(&mut self, wanted: &str, extension: &str) {
        let ty = self.ty().to_owned();
        let text = format!("must be {wanted} if {extension}");
        match ty.as_str() {
            "" => self.required("type", &text),
            ty if ty != wanted => self.invalid("type", ty, &text),
            _ => {}
        }
    }

    fn embedded(&mut self) {
        if !self.is("embedded-resource") {
            return;
        }
        let empty = self.get("properties").as_object().is_none_or(Map::is_empty);
        if empty && !self.is("preserve-unknown-fields") {
            let text = "must not be empty if x-kubernetes-embedded-resource is true without \
                        x-kubernetes-preserve-unknown-fields";
            self.required("properties", text);
        }
        self.demand_type("object", "x-kubernetes-embedded-resource is true");
    }

    /// Whole objects may only have named fields.
    fn entries(&mut self, root: bool) {
        if self.get("additionalProperties").is_null() {
            return;
        }
        let mut forbid = |text: &str| {
            self.errors.push(FieldError::forbidden(format!("{}.additionalProperties", self.path), text));
        };
        if root {
            forbid("must not be used at the root");
        }
        if self.schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
            forbid("must not be used if x-kubernetes-embedded-resource is set");
        }
    }

    fn map_type(&mut self) {
        let Some(map_type) = self.get("x-kubernetes-map-type").as_str().map(str::to_owned) else { return };
        self.demand_type("object", "x-kubernetes-map-type is specified");
        if !matches!(map_type.as_str(), "atomic" | "granular") {
            let at = format!("{}.x-kubernetes-map-type", self.path);
            self.errors.push(FieldError::not_supported(at, map_type, &["atomic", "granular"]));
        }
    }

    fn list_type(&mut self) {
        let list_type = self.get("x-kubernetes-list-type").as_str().map(str::to_owned);
        if list_type.is_some() {
            self.demand_type("array", "x-kubernetes-list-type is specified");
        }
        let keys = self.get("x-kubernetes-list-map-keys").as_array().cloned().unwrap_or_default();
        match list_type.as_deref() {
            None | Some("atomic" | "set" | "map") => {}
            Some(other) => {
                let at = format!("{}.x-kubernetes-list-type", self.path);
                self.errors.push(FieldError::not_supported(at, other, &["atomic", "set", "map"]));
            }
        }
        if !keys.is_empty() && list_type.as_deref() != Some("map") {
            let text = "must be map if x-kubernetes-list-map-keys is non-empty";
            match &list_type {
                None => self.required("x-kubernetes-list-type", text),
                Some(other) => self.invalid("x-kubernetes-list-type", other.as_str(), text),
            }
        }
        let items = self.get("items").clone();
        match list_type.as_deref() {
            Some("set") => self.set(&items),
            Some("map") => self.associative(&items, &keys),
            _ => {}
        }
    }

    /// Items of a set are compared and owned as a whole.
    fn set(&mut self, items: &Value) {
        if items["nullable"] == true {
            let at = format!("{}.items.nullable", self.path);
            self.errors
                .push(FieldError::forbidden(at, "cannot be nullable when x-kubernetes-list-type is set"));
        }
        let (key, list) = match items["type"].as_str() {
            Some("object") => ("x-kubernetes-map-type", false),
            Some("array") => ("x-kubernetes-list-type", true),
            _ => return,
        };
        let own = &items[key];
        if own != "atomic" && !(list && own.is_null()) {
            let text = "must be atomic as item of a list with x-kubernetes-list-type=set";
            self.invalid(&format!("items.{key}"), own.clone(), text);
        }
    }

    fn associative(&mut self, items: &Value, keys: &[Value]) {
        if items["nullable"] == true {
            let at = format!("{}.items.nullable", self.path);
            self.errors
                .push(FieldError::forbidden(at, "cannot be nullable when x-kubernetes-list-type is map"));
        }
        let list = "x-kubernetes-list-map-keys";
        if keys.is_empty() {
            self.required(list, "must not be empty if x-kubernetes-list-type is map");
        }
        if !items.is_object() {
            return self.required("items", "must have a schema if x-kubernetes-list-type is map");
        }
        let ty = items["type"].as_str().unwrap_or_default();
        if ty != "object" {
            let text = "must be object if parent array's x-kubernetes-list-type is map";
            return self.invalid("items.type", ty, text);
        }
        let names: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
        let property = |name: &str| items["properties"].get(name);
        if names.iter().any(|name| property(name).is_none()) {
            self.invalid(list, names.clone(), "entries must all be names of item properties");
        }
        if (1..names.len()).any(|index| names[..index].contains(&names[index])) {
            self.invalid(list, names.clone(), "must not contain duplicate entries");
        }
        let required = items["required"].as_array().cloned().unwrap_or_default();
        for name in names {
            let Some(property) = property(name) else { continue };
            self.key(name, property, required.iter().any(|own| own == name));
        }
    }

    fn key(&mut self, name: &str, property: &Value, required: bool) {
        let at = format!("items.properties[{name}]");
        if let Some(ty @ ("object" | "array")) = property["type"].as_str() {
            let text = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            self.invalid(&format!("{at}.type"), ty, text);
        }
        if property["nullable"] == true {
            let at = format!("{}.{at}.nullable", self.path);
            let text = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            self.errors.push(FieldError::forbidden(at, text));
        }
        if property["default"].is_null() && !required {
            let text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                        property";
            self.required(&format!("{at}.default"), text);
        }
    }

    /// Checks the fields that every object has. They need not be declared; for metadata, a schema may only restrict
    /// names.
    fn metadata(&mut self, root: bool) {
        if !root && !self.is("embedded-resource") {
            return;
        }
        let properties = self.get("properties").clone();
        for (name, wanted) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
            let ty = properties[name]["type"].as_str().unwrap_or_default();
            if properties[name].is_object() && ty != wanted {
                self.invalid(&format!("properties[{name}].type"), ty, &format!("must be {wanted}"));
            }
        }
        let Value::Object(metadata) = &properties["metadata"] else { return };
        if !root {
            return;
        }
        if metadata.get("default").is_some_and(|default| !default.is_null()) {
            let at = format!("{}.properties[metadata].default", self.path);
            self.errors.push(FieldError::forbidden(at, "must not be set in top-level metadata"));
        }
        let allowed = |(key, value): (&String, &Value)| match key.as_str() {
            "type" | "description" | "default" => true,
            "properties" => value
                .as_object()
                .is_some_and(|own| own.keys().all(|name| matches!(name.as_str(), "name" | "generateName"))),
            _ => false,
        };
        if !metadata.iter().all(allowed) {
            let at = format!("{}.properties[metadata]", self.path);
            let text = "must not specify anything other than name and generateName, but metadata is implicitly \
                        specified";
            self.errors.push(FieldError::forbidden(at, text));
        }
    }
}
